#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "text/tokenizer_parts.h"

// Multiplying spreads the bits upwards; the shift brings them down to where a mask takes them.
static uint64_t hash_word(uint64_t hash, uint64_t word)
{
    hash = (hash ^ word) * 0x9e3779b97f4a7c15u;
    return hash ^ hash >> 32;
}

static uint64_t hash_bytes(const uint8_t *bytes, size_t size)
{
    uint64_t hash = size, word = 0;
    for (; size >= 8; size -= 8, bytes += 8) {
        memcpy(&word, bytes, 8);
        hash = hash_word(hash, word);
    }
    for (word = 0; size > 0; size--)
        word = word << 8 | *bytes++;
    return hash_word(hash, word);
}

// The mask of a table at most half full.
static size_t mask_for(size_t count)
{
    size_t mask = 15;
    while (mask < 2 * count)
        mask = 2 * mask + 1;
    return mask;
}

static nib_status make_room(struct nib_vocab *vocab, int32_t id, struct nib_error *err)
{
    if (id >= vocab->capacity) {
        int32_t capacity = id < 512 ? 1024 : 2 * id;
        struct nib_vocab_token *tokens = realloc(vocab->tokens, (size_t)capacity * sizeof *tokens);
        if (!tokens)
            return nib_fail_memory(err, (size_t)capacity * sizeof *tokens, "the vocabulary");
        vocab->tokens = tokens;
        vocab->capacity = capacity;
    }
    if (id >= vocab->size) {
        memset(vocab->tokens + vocab->size, 0, (size_t)(id + 1 - vocab->size) * sizeof *vocab->tokens);
        vocab->size = id + 1;
    }
    return NIB_OK;
}

nib_status nib_vocab_add(struct nib_vocab *vocab, int64_t id, const void *bytes, size_t size, uint32_t flags,
                         struct nib_error *err)
{
    if (id < 0 || id >= NIB_VOCAB_ID_LIMIT)
        return nib_fail(err, NIB_ERR_LIMIT, "token id %lld is outside 0 … %d", (long long)id,
                        NIB_VOCAB_ID_LIMIT - 1);
    if (size > UINT32_MAX - vocab->pool.size)
        return nib_fail(err, NIB_ERR_LIMIT, "the vocabulary's tokens are longer than 4 GiB together");
    nib_status status = make_room(vocab, (int32_t)id, err);
    if (status != NIB_OK)
        return status;
    struct nib_vocab_token *token = &vocab->tokens[id];
    if (token->flags)
        return nib_fail(err, NIB_ERR_FORMAT, "two tokens have the id %lld", (long long)id);
    *token = (struct nib_vocab_token){(uint32_t)vocab->pool.size, (uint32_t)size, flags | NIB_TOKEN_USED};
    return nib_bytes_append(&vocab->pool, bytes, size, err);
}

static bool token_is(const struct nib_vocab *vocab, int32_t id, const uint8_t *bytes, size_t size)
{
    return vocab->tokens[id].size == size && memcmp(nib_vocab_bytes(vocab, id), bytes, size) == 0;
}

static nib_status index_token(struct nib_vocab *vocab, int32_t id, struct nib_error *err)
{
    const struct nib_vocab_token *token = &vocab->tokens[id];
    const uint8_t *bytes = nib_vocab_bytes(vocab, id);
    uint64_t hash = hash_bytes(bytes, token->size);
    size_t at = (size_t)hash & vocab->slot_mask;
    for (; vocab->slots[at].id >= 0; at = (at + 1) & vocab->slot_mask)
        if (token_is(vocab, vocab->slots[at].id, bytes, token->size))
            return nib_fail(err, NIB_ERR_FORMAT, "tokens %d and %d have the same bytes", vocab->slots[at].id, id);
    vocab->slots[at] = (struct nib_vocab_slot){(uint32_t)(hash >> 32), id};
    if (token->size > vocab->longest)
        vocab->longest = token->size;
    if (token->size == 1)
        vocab->byte_ids[bytes[0]] = id;
    return NIB_OK;
}

nib_status nib_vocab_index(struct nib_vocab *vocab, struct nib_error *err)
{
    size_t count = 0;
    for (int32_t id = 0; id < vocab->size; id++)
        count += (vocab->tokens[id].flags & NIB_TOKEN_MERGED) != 0;
    vocab->slot_mask = mask_for(count);
    vocab->slots = malloc((vocab->slot_mask + 1) * sizeof *vocab->slots);
    if (!vocab->slots)
        return nib_fail_memory(err, (vocab->slot_mask + 1) * sizeof *vocab->slots, "the vocabulary's index");
    memset(vocab->slots, 0xff, (vocab->slot_mask + 1) * sizeof *vocab->slots);
    memset(vocab->byte_ids, 0xff, sizeof vocab->byte_ids);
    nib_status status = NIB_OK;
    for (int32_t id = 0; status == NIB_OK && id < vocab->size; id++)
        if (vocab->tokens[id].flags & NIB_TOKEN_MERGED)
            status = index_token(vocab, id, err);
    return status;
}

int32_t nib_vocab_find(const struct nib_vocab *vocab, const uint8_t *bytes, size_t size)
{
    if (size > vocab->longest)
        return -1;
    uint64_t hash = hash_bytes(bytes, size);
    for (size_t at = (size_t)hash & vocab->slot_mask;; at = (at + 1) & vocab->slot_mask) {
        struct nib_vocab_slot slot = vocab->slots[at];
        if (slot.id < 0 || (slot.tag == (uint32_t)(hash >> 32) && token_is(vocab, slot.id, bytes, size)))
            return slot.id;
    }
}

static uint64_t pair_of(int32_t left, int32_t right)
{
    return (uint64_t)(uint32_t)left << 32 | (uint32_t)right;
}

nib_status nib_vocab_reserve_merges(struct nib_vocab *vocab, size_t count, struct nib_error *err)
{
    vocab->merge_mask = mask_for(count);
    vocab->merges = malloc((vocab->merge_mask + 1) * sizeof *vocab->merges);
    if (!vocab->merges)
        return nib_fail_memory(err, (vocab->merge_mask + 1) * sizeof *vocab->merges, "merges");
    for (size_t i = 0; i <= vocab->merge_mask; i++)
        vocab->merges[i] = (struct nib_merge_slot){UINT64_MAX, NIB_NO_MERGE, -1};
    return NIB_OK;
}

// The slot that holds the pair, or the empty one where it belongs.
static struct nib_merge_slot *merge_slot(const struct nib_vocab *vocab, int32_t left, int32_t right)
{
    uint64_t pair = pair_of(left, right);
    size_t at = (size_t)hash_word(0, pair) & vocab->merge_mask;
    while (vocab->merges[at].pair != pair && vocab->merges[at].pair != UINT64_MAX)
        at = (at + 1) & vocab->merge_mask;
    return &vocab->merges[at];
}

void nib_vocab_add_merge(struct nib_vocab *vocab, int32_t left, int32_t right, uint32_t rank, int32_t id)
{
    *merge_slot(vocab, left, right) = (struct nib_merge_slot){pair_of(left, right), rank, id};
}

struct nib_merge_slot nib_vocab_find_merge(const struct nib_vocab *vocab, int32_t left, int32_t right)
{
    return *merge_slot(vocab, left, right);
}

void nib_vocab_free(struct nib_vocab *vocab)
{
    nib_bytes_free(&vocab->pool);
    free(vocab->tokens);
    free(vocab->slots);
    free(vocab->merges);
}
