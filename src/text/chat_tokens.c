// Between chats and a real tokenizer.
#include "nibble/chat.h"
#include "nibble/tokenizer.h"

static int32_t control_token(const void *self, const char *spelling)
{
    const struct nib_tokenizer *tokenizer = self;
    int32_t token = nib_tokenizer_find_added(tokenizer, spelling);
    return nib_tokenizer_is_special(tokenizer, token) ? token : -1;
}

static struct nib_text token_bytes(const void *self, int32_t token)
{
    const struct nib_tokenizer *tokenizer = self;
    size_t size = 0;
    const uint8_t *bytes = nib_tokenizer_token_bytes(tokenizer, token, &size);
    if (!bytes || nib_tokenizer_is_special(tokenizer, token))
        return (struct nib_text){0};
    return (struct nib_text){(const char *)bytes, size};
}

struct nib_vocabulary nib_vocabulary_of(const struct nib_tokenizer *tokenizer)
{
    return (struct nib_vocabulary){tokenizer, control_token, token_bytes};
}

nib_status nib_pieces_encode(const struct nib_pieces *pieces, size_t first, const struct nib_tokenizer *tokenizer,
                             struct nib_token_list *list, struct nib_error *err)
{
    nib_status status = NIB_OK;
    for (size_t i = first; i < pieces->count && status == NIB_OK; i++) {
        const struct nib_piece *piece = &pieces->items[i];
        if (piece->text.size)
            status =
                nib_tokenizer_encode(tokenizer, piece->text.bytes, piece->text.size, NIB_ENCODE_PLAIN, list, err);
        else
            status = nib_token_list_add(list, piece->control, err);
    }
    return status;
}
