// Which tokens of a vocabulary an automaton lets follow. The vocabulary is sorted into a tree of bytes once; a mask is
// then one walk over the part of the tree that the automaton allows. Inside JSON strings, where that would be nearly all
// of it, tokens that stay inside are known beforehand, and those that close the string are sorted by what follows the
// quote.
#ifndef NIB_TEXT_TOKEN_MASK_H
#define NIB_TEXT_TOKEN_MASK_H

#include "nibble/tokenizer.h"
#include "text/byte_automaton.h"

struct nib_mask_vocabulary;

// `vocab` is the width of the logits. Added tokens are never in a mask. The tokenizer is borrowed. Read-only
// afterwards: any number of threads may use one.
nib_status nib_mask_vocabulary_create(const struct nib_tokenizer *tokenizer, int32_t vocab,
                                      struct nib_mask_vocabulary **vocabulary, struct nib_error *err);
void nib_mask_vocabulary_free(struct nib_mask_vocabulary *vocabulary);           // NULL is fine
int32_t nib_mask_words(const struct nib_mask_vocabulary *vocabulary);            // of 32 bits
const uint32_t *nib_mask_ordinary(const struct nib_mask_vocabulary *vocabulary); // all tokens that are text

// Masks of one automaton, kept by configuration.
struct nib_token_mask {
    const struct nib_mask_vocabulary *vocabulary; // borrowed
    struct nib_automaton *automaton;              // borrowed
    uint32_t **masks;                             /* [capacity] by configuration; NULL: not made */
    size_t capacity, kept;
    int32_t *path; // scratch
    bool failed;   // memory
};

nib_status nib_token_mask_init(struct nib_token_mask *mask, const struct nib_mask_vocabulary *vocabulary,
                               struct nib_automaton *automaton, struct nib_error *err);
void nib_token_mask_free(struct nib_token_mask *mask);

// The tokens that may follow in a configuration; NULL when memory is out. Valid until the next call.
const uint32_t *nib_token_mask_at(struct nib_token_mask *mask, int32_t config);

// The configuration behind a token, -1 when it may not follow.
int32_t nib_token_mask_step(struct nib_token_mask *mask, int32_t config, int32_t token);

// For tests: the same by one whole walk.
nib_status nib_token_mask_walk(struct nib_token_mask *mask, int32_t config, uint32_t *bits);

#endif
