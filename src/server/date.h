// The date that prompts give the model.
#ifndef NIB_SERVER_DATE_H
#define NIB_SERVER_DATE_H

#include "server/server_state.h"

struct nib_date {
    char text[16]; // "2025-06-28"
};

struct nib_date nib_prompt_date(const struct nib_server *server);

#endif
