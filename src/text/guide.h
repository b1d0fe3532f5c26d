// Guides what a model may write next: which kinds of messages, and what JSON their texts must be. Reasoning and calls
// that nothing binds stay free.
#ifndef NIB_TEXT_GUIDE_H
#define NIB_TEXT_GUIDE_H

#include <jansson.h>

#include "nibble/chat.h"
#include "text/token_mask.h"

// A kind of message that may come.
struct nib_guide_branch {
    struct nib_message header; // role, channel, recipient, content type; texts borrowed for nib_guide_create only
    const json_t *schema;      // of its text; NULL: free
    bool goes_on;              // another message follows; otherwise the answer ends with it
};

struct nib_guide;

// Kinds that the format does not have are left out. NIB_ERR_UNSUPPORTED and _ARGUMENT as nib_json_schema_compile, and for a
// format that cannot be held to them. Chat, tokenizer and vocabulary are borrowed.
nib_status nib_guide_create(const struct nib_chat *chat, const struct nib_tokenizer *tokenizer,
                            const struct nib_mask_vocabulary *vocabulary,
                            const struct nib_guide_branch *branches /* [count] */, size_t count,
                            struct nib_guide **guide, struct nib_error *err);
void nib_guide_free(struct nib_guide *guide); // NULL is fine

// As struct nib_constraint wants them; the context is the guide. The answer begins behind its author, as for a parser FROM_REPLY.
const uint32_t *nib_guide_mask(void *context);
void nib_guide_accept(void *context, int32_t token);

#endif
