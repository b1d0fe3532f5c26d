// What a request to /v1/responses says to the model.
#ifndef NIB_SERVER_RESPONSES_REQUEST_H
#define NIB_SERVER_RESPONSES_REQUEST_H

#include "server/chat_request.h"

// Items of a conversation: messages, reasoning, function calls and their outputs. `name` is what the array is called.
bool nib_read_items(struct nib_chat_request *request, const struct nib_fields *fields, const char *name,
                    const json_t *items);

#endif
