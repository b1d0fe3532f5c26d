#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "text/tokenizer_parts.h"

// Bounds the work that a text made of the beginnings of a long token causes.
#define ADDED_TOKEN_LIMIT 1024

nib_status nib_added_set_add(struct nib_added_set *set, struct nib_vocab *vocab, const char *text, size_t size,
                             struct nib_added_token token, struct nib_error *err)
{
    if (size == 0 || size > ADDED_TOKEN_LIMIT || !nib_utf8_valid(text, size))
        return nib_fail(err, NIB_ERR_FORMAT, "added token %d: its text must be 1 … %d bytes of UTF-8, it has %zu",
                        token.id, ADDED_TOKEN_LIMIT, size);
    if ((set->count & (set->count - 1)) == 0) { // full at every power of two
        size_t capacity = set->count ? 2 * set->count : 1;
        struct nib_added_token *tokens = realloc(set->tokens, capacity * sizeof *tokens);
        if (!tokens)
            return nib_fail_memory(err, capacity * sizeof *tokens, "added tokens");
        set->tokens = tokens;
    }
    if (size > UINT32_MAX - vocab->pool.size)
        return nib_fail(err, NIB_ERR_LIMIT, "the vocabulary's tokens are longer than 4 GiB together");
    token.start = (uint32_t)vocab->pool.size;
    token.size = (uint32_t)size;
    set->tokens[set->count++] = token;
    set->first[(uint8_t)text[0]] = true;
    return nib_bytes_append(&vocab->pool, text, size, err);
}

static int compare(const void *left, const void *right, void *pool)
{
    const struct nib_added_token *a = left, *b = right;
    uint32_t shorter = a->size < b->size ? a->size : b->size;
    int order = memcmp((const char *)pool + a->start, (const char *)pool + b->start, shorter);
    return order ? order : (a->size > b->size) - (a->size < b->size);
}

nib_status nib_added_set_sort(struct nib_added_set *set, const struct nib_vocab *vocab, struct nib_error *err)
{
    if (set->count == 0)
        return NIB_OK;
    qsort_r(set->tokens, set->count, sizeof *set->tokens, compare, vocab->pool.data);
    for (size_t i = 1; i < set->count; i++)
        if (compare(&set->tokens[i - 1], &set->tokens[i], vocab->pool.data) == 0)
            return nib_fail(err, NIB_ERR_FORMAT, "added tokens %d and %d have the same text",
                            set->tokens[i - 1].id, set->tokens[i].id);
    return NIB_OK;
}

// The first of tokens [low, high), all longer than `column` and equal before it, whose byte there is at least `byte`.
static size_t first_at_least(const struct nib_added_set *set, const uint8_t *pool, size_t low, size_t high,
                             size_t column, unsigned byte)
{
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (pool[set->tokens[middle].start + column] < byte)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

const struct nib_added_token *nib_added_set_match(const struct nib_added_set *set, const struct nib_vocab *vocab,
                                                  const uint8_t *p, size_t size)
{
    const uint8_t *pool = (const uint8_t *)vocab->pool.data;
    const struct nib_added_token *longest = NULL;
    size_t low = 0, high = set->count;
    for (size_t column = 0; low < high; column++) {
        if (set->tokens[low].size == column) // of the tokens equal so far, the one that ends here comes first
            longest = &set->tokens[low++];
        if (column == size)
            break;
        low = first_at_least(set, pool, low, high, column, p[column]);
        high = first_at_least(set, pool, low, high, column, p[column] + 1u);
    }
    return longest;
}
