// Clients that leave while their connection is suspended. libmicrohttpd does not look at such a connection, so the
// scheduler's thread asks here between two steps.
#ifndef NIB_SERVER_DEPARTURES_H
#define NIB_SERVER_DEPARTURES_H

#include "server/exchange.h"

struct nib_departures;

nib_status nib_departures_create(struct nib_departures **departures, struct nib_error *err);
void nib_departures_free(struct nib_departures *departures); // NULL is fine

// Watches the socket of an exchange until _forget, which must come before the socket is closed. 0 when it cannot be
// watched; its departure is then noticed with the next write.
uint64_t nib_departures_watch(struct nib_departures *departures, int socket, struct nib_exchange *exchange);
void nib_departures_forget(struct nib_departures *departures, int socket, uint64_t watch);

// Cancels the work of every client that has left since the last call. Does not block.
void nib_departures_check(struct nib_departures *departures);

#endif
