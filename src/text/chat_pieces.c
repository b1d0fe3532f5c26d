#include "text/chat_format.h"

#include <stdlib.h>

void nib_pieces_free(struct nib_pieces *pieces)
{
    free(pieces->items);
    nib_arena_free(pieces->arena);
    *pieces = (struct nib_pieces){0};
}

static bool put(struct nib_pieces *pieces, struct nib_piece piece)
{
    void *items = pieces->items;
    bool grown = nib_grow(&items, &pieces->capacity, pieces->count, sizeof piece);
    pieces->items = items;
    if (grown)
        pieces->items[pieces->count++] = piece;
    return grown;
}

bool nib_pieces_put_control(struct nib_pieces *pieces, int32_t token)
{
    return put(pieces, (struct nib_piece){.control = token});
}

bool nib_pieces_put_borrowed(struct nib_pieces *pieces, struct nib_text text)
{
    return text.size == 0 || put(pieces, (struct nib_piece){.text = text});
}

bool nib_pieces_put_copy(struct nib_pieces *pieces, const char *prefix, struct nib_text text)
{
    struct nib_text head = nib_text_of(prefix);
    char *copy = nib_arena_alloc(&pieces->arena, head.size + text.size);
    if (!copy)
        return false;
    memcpy(copy, head.bytes, head.size);
    if (text.size)
        memcpy(copy + head.size, text.bytes, text.size);
    return nib_pieces_put_borrowed(pieces, (struct nib_text){copy, head.size + text.size});
}

// The format's control token that `words` begin with, the longest; -1: none.
static int control_at(const struct nib_chat *chat, const char *words)
{
    const struct nib_chat_control *controls = chat->format->controls;
    int found = -1;
    size_t longest = 0;
    for (size_t i = 0; i < chat->control_count; i++) {
        size_t size = strlen(controls[i].spelling);
        if (chat->controls[i] >= 0 && size > longest && strncmp(words, controls[i].spelling, size) == 0) {
            found = (int)i;
            longest = size;
        }
    }
    return found;
}

bool nib_pieces_put_words(struct nib_pieces *pieces, const struct nib_chat *chat, const char *words)
{
    bool fine = true;
    size_t plain = 0; // bytes of words that wait to be put
    while (fine && words[plain]) {
        int control = control_at(chat, words + plain);
        if (control < 0) {
            plain++;
            continue;
        }
        fine = nib_pieces_put_borrowed(pieces, (struct nib_text){words, plain}) &&
               nib_pieces_put_control(pieces, chat->controls[control]);
        words += plain + strlen(chat->format->controls[control].spelling);
        plain = 0;
    }
    return fine && nib_pieces_put_borrowed(pieces, (struct nib_text){words, plain});
}

bool nib_pieces_put_marked(struct nib_pieces *pieces, struct nib_text text, size_t from,
                           const struct nib_mark *marks, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        size_t to = marks[i].at;
        if (to > from && !nib_pieces_put_borrowed(pieces, (struct nib_text){text.bytes + from, to - from}))
            return false;
        if (!nib_pieces_put_control(pieces, marks[i].token))
            return false;
        from = to > from ? to : from;
    }
    if (from >= text.size)
        return true;
    return nib_pieces_put_borrowed(pieces, (struct nib_text){text.bytes + from, text.size - from});
}
