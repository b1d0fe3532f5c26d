// Byte-pair merging of one word: the pair of lowest rank, the leftmost of equals, until no pair is a merge.
// Symbols form a linked list and the possible merges a heap, so a word of n bytes costs n log n.
#include <stdlib.h>

#include "base/error.h"
#include "text/tokenizer_parts.h"

#define NONE UINT32_MAX

struct nib_bpe_symbol {
    int32_t id;
    int32_t merged;      // what it becomes together with the next symbol
    uint32_t rank;       // of that merge; NIB_NO_MERGE also when the symbol is gone
    uint32_t start;      // in the word
    uint32_t prev, next; // NONE at the ends
};

struct word {
    const struct nib_vocab *vocab;
    const uint8_t *bytes;
    uint32_t size;
    struct nib_bpe_symbol *symbols;
    uint64_t *heap; // rank << 32 | symbol, the least on top; entries whose symbol has another rank by now are void
    size_t heap_size;
};

void nib_bpe_scratch_free(struct nib_bpe_scratch *scratch)
{
    free(scratch->symbols);
    free(scratch->heap);
    *scratch = (struct nib_bpe_scratch){0};
}

static bool reserve(struct nib_bpe_scratch *scratch, size_t size)
{
    if (scratch->symbols && size <= scratch->capacity)
        return true;
    size_t capacity = size < 128 ? 128 : size + size / 2;
    nib_bpe_scratch_free(scratch);
    scratch->symbols = malloc(capacity * sizeof *scratch->symbols);
    scratch->heap = malloc(2 * capacity * sizeof *scratch->heap);
    if (!scratch->symbols || !scratch->heap)
        return false;
    scratch->capacity = capacity;
    return true;
}

static void heap_push(struct word *word, uint64_t entry)
{
    size_t at = word->heap_size++;
    for (; at > 0 && word->heap[(at - 1) / 2] > entry; at = (at - 1) / 2)
        word->heap[at] = word->heap[(at - 1) / 2];
    word->heap[at] = entry;
}

static uint64_t heap_pop(struct word *word)
{
    uint64_t top = word->heap[0], last = word->heap[--word->heap_size];
    size_t at = 0;
    for (size_t child; (child = 2 * at + 1) < word->heap_size; at = child) {
        if (child + 1 < word->heap_size && word->heap[child + 1] < word->heap[child])
            child++;
        if (word->heap[child] >= last)
            break;
        word->heap[at] = word->heap[child];
    }
    word->heap[at] = last;
    return top;
}

// Looks up what symbol `at` and the next one make, and enters it.
static void consider(struct word *word, uint32_t at)
{
    struct nib_bpe_symbol *symbol = &word->symbols[at];
    symbol->rank = NIB_NO_MERGE;
    if (symbol->next == NONE)
        return;
    const struct nib_bpe_symbol *next = &word->symbols[symbol->next];
    if (word->vocab->merges_by_rank) {
        uint32_t end = next->next == NONE ? word->size : word->symbols[next->next].start;
        symbol->merged = nib_vocab_find(word->vocab, word->bytes + symbol->start, end - symbol->start);
        symbol->rank = symbol->merged < 0 ? NIB_NO_MERGE : (uint32_t)symbol->merged;
    } else {
        struct nib_merge_slot merge = nib_vocab_find_merge(word->vocab, symbol->id, next->id);
        symbol->merged = merge.id;
        symbol->rank = merge.rank;
    }
    if (symbol->rank != NIB_NO_MERGE)
        heap_push(word, (uint64_t)symbol->rank << 32 | at);
}

static void merge_all(struct word *word)
{
    while (word->heap_size > 0) {
        uint64_t top = heap_pop(word);
        uint32_t at = (uint32_t)top;
        struct nib_bpe_symbol *symbol = &word->symbols[at];
        if (symbol->rank != (uint32_t)(top >> 32))
            continue;
        struct nib_bpe_symbol *gone = &word->symbols[symbol->next];
        symbol->id = symbol->merged;
        symbol->next = gone->next;
        gone->rank = NIB_NO_MERGE;
        if (symbol->next != NONE)
            word->symbols[symbol->next].prev = at;
        consider(word, at);
        if (symbol->prev != NONE)
            consider(word, symbol->prev);
    }
}

// One symbol for each byte that has a token; returns how many.
static uint32_t list_symbols(const struct nib_tokenizer *tokenizer, struct word *word)
{
    uint32_t count = 0;
    bool fuse = false;
    for (uint32_t i = 0; i < word->size; i++) {
        int32_t id = word->vocab->byte_ids[word->bytes[i]];
        bool known = id >= 0;
        if (!known)
            id = tokenizer->unknown;
        if (id < 0 || (!known && fuse))
            continue;
        fuse = !known && tokenizer->fuse_unknown;
        word->symbols[count] = (struct nib_bpe_symbol){id, -1, NIB_NO_MERGE, i, count - 1, count + 1};
        count++;
    }
    if (count > 0) { // symbol 0 has prev NONE already: 0 - 1
        word->symbols[count - 1].next = NONE;
        for (uint32_t i = 0; i < count; i++)
            consider(word, i);
    }
    return count;
}

nib_status nib_bpe_encode_word(const struct nib_tokenizer *tokenizer, struct nib_bpe_scratch *scratch,
                               const uint8_t *bytes, size_t size, struct nib_token_list *list,
                               struct nib_error *err)
{
    const struct nib_vocab *vocab = &tokenizer->vocab;
    if (tokenizer->whole_words) {
        int32_t id = nib_vocab_find(vocab, bytes, size);
        if (id >= 0 && !(vocab->tokens[id].flags & NIB_TOKEN_SPECIAL))
            return nib_token_list_add(list, id, err);
    }
    if (!reserve(scratch, size))
        return nib_fail_memory(err, size * (sizeof *scratch->symbols + 2 * sizeof *scratch->heap), "one word");
    struct word word = {vocab, bytes, (uint32_t)size, scratch->symbols, scratch->heap, 0};
    if (list_symbols(tokenizer, &word) == 0)
        return NIB_OK;
    merge_all(&word);
    nib_status status = NIB_OK;
    for (uint32_t at = 0; status == NIB_OK && at != NONE; at = word.symbols[at].next)
        status = nib_token_list_add(list, word.symbols[at].id, err);
    return status;
}
