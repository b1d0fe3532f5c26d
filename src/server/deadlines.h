// Connections that take too long. libmicrohttpd hangs up on silent ones; one that trickles is never silent. So what a
// client has to do next, send a request or take an answer, has a deadline, and whoever misses it is cut off, as is whoever
// hangs up before a request is complete.
//
// And connections that end before the client has sent everything: a socket that is closed with bytes unread is reset, and
// many clients then never see the answer. So only this side is shut, and what still comes is thrown away for a while (RFC
// 9112, section 9.6).
#ifndef NIB_SERVER_DEADLINES_H
#define NIB_SERVER_DEADLINES_H

#include <stddef.h>

#include "nibble/status.h"

struct nib_deadlines; // of a server; all functions may be called by any thread
struct nib_deadline;  // of a connection

// Starts a thread that watches. `patience`: seconds for anything.
nib_status nib_deadlines_create(double patience, struct nib_deadlines **deadlines, struct nib_error *err);
void nib_deadlines_free(struct nib_deadlines *deadlines); // NULL is fine

// A connection that has no deadline yet; NULL, which all functions take, when memory is out. Removed before the socket is
// closed.
struct nib_deadline *nib_deadline_add(struct nib_deadlines *deadlines, int socket);
void nib_deadline_remove(struct nib_deadline *deadline);
// Has the removal give the client time, up to the patience, to send what nobody waits for; to 64 clients at once.
void nib_deadline_linger(struct nib_deadline *deadline);

// The patience from now on, and a second for every 64 KiB: of a request, in the midst of which a client may leave, or of an
// answer.
void nib_deadline_receive(struct nib_deadline *deadline, size_t bytes);
void nib_deadline_send(struct nib_deadline *deadline, size_t bytes);
void nib_deadline_clear(struct nib_deadline *deadline); // it is not the client's turn

#endif
