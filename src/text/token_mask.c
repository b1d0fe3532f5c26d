#include "text/token_mask.h"

#include <stdlib.h>
#include <string.h>

#include "base/error.h"

#define MAX_MASKS 256 // kept by one automaton
#define MAX_TOKEN_BYTES 1024
#define MOST_CHARACTERS 64 // tokens of as many and more are told apart one by one

// A token, or the part of it behind a closing quote; `characters` stand before that.
struct entry {
    const uint8_t *bytes; /* [size] */
    uint32_t size;
    int32_t token, characters;
};

// Entries as a tree of their bytes, in preorder: behind node n come its children, up to end[n].
struct tree {
    int32_t n_nodes, n_entries;
    uint8_t *byte;
    uint16_t *depth; // of the root 0
    int32_t *end;
    int32_t *first; // entries that end here: first[n] up to last[n]
    int32_t *last;
    struct entry *entries;
};

struct nib_mask_vocabulary {
    const struct nib_tokenizer *tokenizer;
    int32_t vocab, words;
    uint32_t *ordinary; /* [words] */
    struct tree all, closing;
    uint32_t
        *inside; /* [MOST_CHARACTERS + 1, words] tokens that stay in a string, of at most so many characters */
    struct entry *longer; /* [n_longer] those of more characters */
    int32_t n_longer;
};

static void set_bit(uint32_t *bits, int32_t token)
{
    bits[token / 32] |= 1u << (token % 32);
}

// ---- trees ----

static int compare_entries(const void *left, const void *right)
{
    const struct entry *x = left, *y = right;
    size_t size = x->size < y->size ? x->size : y->size;
    int order = size ? memcmp(x->bytes, y->bytes, size) : 0;
    if (order)
        return order;
    if (x->size != y->size)
        return x->size < y->size ? -1 : 1;
    return (x->token > y->token) - (x->token < y->token);
}

static uint32_t common_prefix(const struct entry *x, const struct entry *y)
{
    uint32_t size = 0;
    while (size < x->size && size < y->size && x->bytes[size] == y->bytes[size])
        size++;
    return size;
}

static void tree_free(struct tree *tree)
{
    free(tree->byte);
    free(tree->depth);
    free(tree->end);
    free(tree->first);
    free(tree->last);
    free(tree->entries);
}

// Takes the entries over.
static nib_status tree_build(struct tree *tree, struct entry *entries, int32_t count, struct nib_error *err)
{
    size_t nodes = 1;
    qsort(entries, (size_t)count, sizeof *entries, compare_entries);
    for (int32_t i = 0; i < count; i++)
        nodes += entries[i].size - (i ? common_prefix(&entries[i - 1], &entries[i]) : 0);
    *tree = (struct tree){.n_entries = count,
                          .byte = malloc(nodes),
                          .depth = malloc(nodes * sizeof *tree->depth),
                          .end = malloc(nodes * sizeof *tree->end),
                          .first = calloc(nodes, sizeof *tree->first),
                          .last = calloc(nodes, sizeof *tree->last),
                          .entries = entries};
    if (nodes > INT32_MAX || !tree->byte || !tree->depth || !tree->end || !tree->first || !tree->last)
        return nib_fail_memory(err, nodes * 16, "a vocabulary's tree");
    int32_t path[MAX_TOKEN_BYTES + 1] = {0}; // nodes from the root to the last
    int32_t n = 1;
    uint32_t depth = 0;
    tree->depth[0] = 0;
    tree->byte[0] = 0;
    for (int32_t i = 0; i < count; i++) {
        uint32_t shared = i ? common_prefix(&entries[i - 1], &entries[i]) : 0;
        for (; depth > shared; depth--)
            tree->end[path[depth]] = n;
        for (; depth < entries[i].size; n++) {
            tree->byte[n] = entries[i].bytes[depth++];
            tree->depth[n] = (uint16_t)depth;
            path[depth] = n;
        }
        int32_t node = path[depth];
        if (tree->last[node] == 0)
            tree->first[node] = i;
        tree->last[node] = i + 1;
    }
    for (; depth > 0; depth--)
        tree->end[path[depth]] = n;
    tree->end[0] = n;
    tree->n_nodes = n;
    return NIB_OK;
}

// ---- strings ----

// How many bytes of a UTF-8 character follow its first; -1 when it is no first byte.
static int tail_bytes(uint8_t lead, uint8_t *low, uint8_t *high)
{
    *low = lead == 0xe0 ? 0xa0 : lead == 0xf0 ? 0x90 : 0x80;
    *high = lead == 0xed ? 0x9f : lead == 0xf4 ? 0x8f : 0xbf;
    if (lead < 0x80)
        return 0;
    return lead < 0xc2 ? -1 : lead < 0xe0 ? 1 : lead < 0xf0 ? 2 : lead < 0xf5 ? 3 : -1;
}

static bool is_hex(uint8_t byte)
{
    return (byte >= '0' && byte <= '9') || ((byte | 0x20) >= 'a' && (byte | 0x20) <= 'f');
}

// Reads an escape behind its backslash; the number of bytes, as far as they are there, or -1.
static int64_t escape_size(const uint8_t *bytes, size_t size)
{
    if (size == 0)
        return 0;
    if (bytes[0] != 'u')
        return bytes[0] && strchr("\"\\/bfnrt", bytes[0]) ? 1 : -1;
    for (size_t i = 1; i < 5 && i < size; i++)
        if (!is_hex(bytes[i]) || (i == 2 && (bytes[1] | 0x20) == 'd' && bytes[2] > '7'))
            return -1;
    return size < 5 ? (int64_t)size : 5;
}

// Reads bytes that go on between two characters of a JSON string, up to a closing quote. False when they cannot.
// `*characters` counts those begun; `*quote` is where the closing one stands, or -1. The same language as the rule of
// strings in json_rules.c.
static bool read_inside(const uint8_t *bytes, size_t size, int32_t *characters, int64_t *quote)
{
    *characters = 0;
    *quote = -1;
    for (size_t i = 0; i < size;) {
        uint8_t low, high;
        if (bytes[i] == '"') {
            *quote = (int64_t)i;
            return true;
        }
        if (bytes[i] < 0x20)
            return false;
        ++*characters;
        if (bytes[i] == '\\') {
            int64_t escape = escape_size(bytes + i + 1, size - i - 1);
            if (escape < 0)
                return false;
            i += 1 + (size_t)escape;
            continue;
        }
        int tail = tail_bytes(bytes[i++], &low, &high);
        for (; tail > 0 && i < size; tail--, i++, low = 0x80, high = 0xbf)
            if (bytes[i] < low || bytes[i] > high)
                return false;
        if (tail < 0)
            return false;
    }
    return true;
}

// ---- the vocabulary ----

static const uint32_t *inside_of(const struct nib_mask_vocabulary *v, int32_t room)
{
    return v->inside + (size_t)(room < MOST_CHARACTERS ? room : MOST_CHARACTERS) * (size_t)v->words;
}

// Sorts the tokens: those inside strings by their characters, those that close one by what follows.
static nib_status sort_strings(struct nib_mask_vocabulary *v, struct nib_error *err)
{
    const struct tree *all = &v->all;
    size_t count = (size_t)all->n_entries;
    struct entry *closing = malloc((count + 1) * sizeof *closing);
    v->longer = malloc((count + 1) * sizeof *v->longer);
    if (!closing || !v->longer) {
        free(closing);
        return nib_fail_memory(err, count * sizeof *closing, "a vocabulary's strings");
    }
    int32_t n_closing = 0;
    for (size_t i = 0; i < count; i++) {
        struct entry entry = all->entries[i];
        int64_t quote;
        if (!read_inside(entry.bytes, entry.size, &entry.characters, &quote))
            continue;
        if (quote >= 0) {
            entry.bytes += quote + 1;
            entry.size -= (uint32_t)quote + 1;
            closing[n_closing++] = entry;
        } else if (entry.characters >= MOST_CHARACTERS) {
            v->longer[v->n_longer++] = entry;
        } else {
            for (int32_t room = entry.characters; room < MOST_CHARACTERS; room++)
                set_bit(v->inside + (size_t)room * (size_t)v->words, entry.token);
        }
    }
    uint32_t *most = v->inside + (size_t)MOST_CHARACTERS * (size_t)v->words;
    memcpy(most, most - v->words, (size_t)v->words * sizeof *most);
    return tree_build(&v->closing, closing, n_closing, err);
}

// Added tokens are tags of chat formats or control tokens, special or not: no text is made of them.
static bool is_tag(const struct nib_tokenizer *tokenizer, int32_t token, const uint8_t *bytes, size_t size)
{
    char text[MAX_TOKEN_BYTES + 1];
    memcpy(text, bytes, size);
    text[size] = 0;
    return nib_tokenizer_is_special(tokenizer, token) || nib_tokenizer_find_added(tokenizer, text) == token;
}

static nib_status collect(struct nib_mask_vocabulary *v, struct nib_error *err)
{
    struct entry *entries = malloc(((size_t)v->vocab + 1) * sizeof *entries);
    int32_t count = 0;
    if (!entries)
        return nib_fail_memory(err, (size_t)v->vocab * sizeof *entries, "a vocabulary");
    for (int32_t token = 0; token < v->vocab && token < nib_tokenizer_vocab_size(v->tokenizer); token++) {
        size_t size = 0;
        const uint8_t *bytes = nib_tokenizer_token_bytes(v->tokenizer, token, &size);
        if (!bytes || size == 0 || size > MAX_TOKEN_BYTES || is_tag(v->tokenizer, token, bytes, size))
            continue;
        set_bit(v->ordinary, token);
        entries[count++] = (struct entry){.bytes = bytes, .size = (uint32_t)size, .token = token};
    }
    return tree_build(&v->all, entries, count, err);
}

nib_status nib_mask_vocabulary_create(const struct nib_tokenizer *tokenizer, int32_t vocab,
                                      struct nib_mask_vocabulary **vocabulary, struct nib_error *err)
{
    struct nib_mask_vocabulary *v = calloc(1, sizeof *v);
    if (!v)
        return nib_fail_memory(err, sizeof *v, "a vocabulary");
    v->tokenizer = tokenizer;
    v->vocab = vocab;
    v->words = (vocab + 31) / 32;
    v->ordinary = calloc((size_t)v->words, sizeof *v->ordinary);
    v->inside = calloc((size_t)(MOST_CHARACTERS + 1) * (size_t)v->words, sizeof *v->inside);
    nib_status status =
        v->ordinary && v->inside ? NIB_OK : nib_fail_memory(err, (size_t)vocab * 9, "a vocabulary");
    if (!status)
        status = collect(v, err);
    if (!status)
        status = sort_strings(v, err);
    if (status) {
        nib_mask_vocabulary_free(v);
        return status;
    }
    *vocabulary = v;
    return NIB_OK;
}

void nib_mask_vocabulary_free(struct nib_mask_vocabulary *v)
{
    if (!v)
        return;
    tree_free(&v->all);
    tree_free(&v->closing);
    free(v->ordinary);
    free(v->inside);
    free(v->longer);
    free(v);
}

int32_t nib_mask_words(const struct nib_mask_vocabulary *vocabulary)
{
    return vocabulary->words;
}

const uint32_t *nib_mask_ordinary(const struct nib_mask_vocabulary *vocabulary)
{
    return vocabulary->ordinary;
}

// ---- masks ----

nib_status nib_token_mask_init(struct nib_token_mask *mask, const struct nib_mask_vocabulary *vocabulary,
                               struct nib_automaton *automaton, struct nib_error *err)
{
    *mask = (struct nib_token_mask){.vocabulary = vocabulary, .automaton = automaton};
    mask->path = malloc((MAX_TOKEN_BYTES + 1) * sizeof *mask->path);
    return mask->path ? NIB_OK : nib_fail_memory(err, MAX_TOKEN_BYTES, "a mask");
}

static void forget_masks(struct nib_token_mask *mask)
{
    for (size_t i = 0; i < mask->capacity; i++) {
        free(mask->masks[i]);
        mask->masks[i] = NULL;
    }
    mask->kept = 0;
}

void nib_token_mask_free(struct nib_token_mask *mask)
{
    forget_masks(mask);
    free(mask->masks);
    free(mask->path);
    *mask = (struct nib_token_mask){0};
}

// Sets the bits of all entries that the automaton lets follow `config`, of least to most characters.
static void walk(struct nib_token_mask *mask, const struct tree *tree, int32_t config, int32_t least, int32_t most,
                 uint32_t *bits)
{
    mask->path[0] = config;
    for (int32_t n = 0; n < tree->n_nodes;) {
        if (n > 0) {
            int32_t next = nib_automaton_step(mask->automaton, mask->path[tree->depth[n] - 1], tree->byte[n]);
            if (next < 0) {
                n = tree->end[n];
                continue;
            }
            mask->path[tree->depth[n]] = next;
        }
        for (int32_t e = tree->first[n]; e < tree->last[n]; e++)
            if (tree->entries[e].characters >= least && tree->entries[e].characters <= most)
                set_bit(bits, tree->entries[e].token);
        n++;
    }
    mask->failed |= mask->automaton->failed;
}

// The place inside a string that is all of a configuration, or NULL.
static const struct nib_rule_state *only_string(const struct nib_automaton *automaton, int32_t config)
{
    const struct nib_config *c = automaton->configs[config];
    const struct nib_rule_state *state = &automaton->rules->states[c->threads[0].state];
    return c->n_threads == 1 && state->room >= 0 ? state : NULL;
}

static void fill_string(struct nib_token_mask *mask, const struct nib_rule_state *state, int32_t frame,
                        uint32_t *bits)
{
    const struct nib_mask_vocabulary *v = mask->vocabulary;
    memcpy(bits, inside_of(v, state->room), (size_t)v->words * sizeof *bits);
    for (int32_t i = 0; i < v->n_longer; i++)
        if (v->longer[i].characters <= state->room)
            set_bit(bits, v->longer[i].token);
    int32_t closed = nib_automaton_at(mask->automaton, state->close, frame);
    if (closed >= 0)
        walk(mask, &v->closing, closed, state->need, state->room, bits);
}

static uint32_t *make_mask(struct nib_token_mask *mask, int32_t config)
{
    uint32_t *bits = calloc((size_t)mask->vocabulary->words, sizeof *bits);
    if (!bits)
        return NULL;
    const struct nib_rule_state *string = only_string(mask->automaton, config);
    if (string)
        fill_string(mask, string, mask->automaton->configs[config]->threads[0].frame, bits);
    else
        walk(mask, &mask->vocabulary->all, config, 0, INT32_MAX, bits);
    return bits;
}

const uint32_t *nib_token_mask_at(struct nib_token_mask *mask, int32_t config)
{
    if ((size_t)config >= mask->capacity) {
        size_t capacity = 2 * (size_t)config + 64;
        uint32_t **masks = realloc(mask->masks, capacity * sizeof *masks);
        if (!masks)
            return NULL;
        memset(masks + mask->capacity, 0, (capacity - mask->capacity) * sizeof *masks);
        mask->masks = masks;
        mask->capacity = capacity;
    }
    if (!mask->masks[config]) {
        if (mask->kept >= MAX_MASKS)
            forget_masks(mask);
        mask->masks[config] = make_mask(mask, config);
        mask->kept++;
    }
    return mask->failed ? NULL : mask->masks[config];
}

int32_t nib_token_mask_step(struct nib_token_mask *mask, int32_t config, int32_t token)
{
    size_t size = 0;
    const uint8_t *bytes = nib_tokenizer_token_bytes(mask->vocabulary->tokenizer, token, &size);
    for (size_t i = 0; bytes && i < size && config >= 0; i++)
        config = nib_automaton_step(mask->automaton, config, bytes[i]);
    return bytes ? config : -1;
}

nib_status nib_token_mask_walk(struct nib_token_mask *mask, int32_t config, uint32_t *bits)
{
    memset(bits, 0, (size_t)mask->vocabulary->words * sizeof *bits);
    walk(mask, &mask->vocabulary->all, config, 0, INT32_MAX, bits);
    return mask->failed ? NIB_ERR_MEMORY : NIB_OK;
}
