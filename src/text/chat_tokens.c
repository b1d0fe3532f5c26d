// Between chats and a real tokenizer.
#include "nibble/chat.h"
#include "nibble/tokenizer.h"

static int32_t control_token(const void *self, const char *spelling)
{
    return nib_tokenizer_find_added(self, spelling);
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

// The texts of pieces [first, end) as one.
static nib_status encode_joined(const struct nib_pieces *pieces, size_t first, size_t end,
                                const struct nib_tokenizer *tokenizer, struct nib_token_list *list,
                                struct nib_error *err)
{
    struct nib_bytes text = {0};
    nib_status status = NIB_OK;
    for (size_t i = first; i < end && status == NIB_OK; i++)
        status = nib_bytes_append(&text, pieces->items[i].text.bytes, pieces->items[i].text.size, err);
    if (status == NIB_OK)
        status = nib_tokenizer_encode(tokenizer, text.data, text.size, NIB_ENCODE_PLAIN, list, err);
    nib_bytes_free(&text);
    return status;
}

nib_status nib_pieces_encode(const struct nib_pieces *pieces, size_t first, const struct nib_tokenizer *tokenizer,
                             struct nib_token_list *list, struct nib_error *err)
{
    nib_status status = NIB_OK;
    for (size_t i = first, end; i < pieces->count && status == NIB_OK; i = end) {
        const struct nib_piece *piece = &pieces->items[i];
        end = i + 1;
        while (pieces->joined && piece->text.size && end < pieces->count && end != pieces->reply_from &&
               pieces->items[end].text.size)
            end++;
        if (end > i + 1)
            status = encode_joined(pieces, i, end, tokenizer, list, err);
        else if (piece->text.size)
            status =
                nib_tokenizer_encode(tokenizer, piece->text.bytes, piece->text.size, NIB_ENCODE_PLAIN, list, err);
        else
            status = nib_token_list_add(list, piece->control, err);
    }
    return status;
}
