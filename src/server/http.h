// HTTP through libmicrohttpd: limits, keys, routes.
#ifndef NIB_SERVER_HTTP_H
#define NIB_SERVER_HTTP_H

#include "server/server_state.h"

// Listens and starts the connections' threads; fills in the server's url.
nib_status nib_http_start(struct nib_server *server, struct nib_error *err);
void nib_http_refuse(struct nib_server *server); // accepts no more connections
void nib_http_stop(struct nib_server *server);   // when no exchange is open

#endif
