// What the files of the tokenizer share: the vocabulary, the splitter, byte-pair merging and UTF-8.
#ifndef NIB_TEXT_TOKENIZER_PARTS_H
#define NIB_TEXT_TOKENIZER_PARTS_H

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include "nibble/tokenizer.h"

// ---- utf8.c

enum nib_utf8_kind { NIB_UTF8_WHOLE, NIB_UTF8_INVALID, NIB_UTF8_UNFINISHED };

// What begins at `p` (size > 0): a character of *length bytes, or the longest run of *length bytes that cannot become
// one, or a run to the end of the bytes that still could.
enum nib_utf8_kind nib_utf8_scan(const uint8_t *p /* [size] */, size_t size, size_t *length);

bool nib_utf8_valid(const void *bytes /* [size] */, size_t size);

// Bytes of the Unicode White_Space character that begins at `p`, or 0.
size_t nib_utf8_space_at(const uint8_t *p /* [size], valid UTF-8 */, size_t size);

// Appends a code point below 0x110000, not a surrogate; returns the number of bytes.
size_t nib_utf8_put(uint32_t character, uint8_t out[4]);

// ---- normalize.c

// Appends the text in Unicode's form NFC. Bytes that are not UTF-8 stay, and more than 1024 combining marks in a row are
// put in order in parts: it takes time by their square.
nib_status nib_normalize_nfc(const uint8_t *text /* [size] */, size_t size, struct nib_bytes *out,
                             struct nib_error *err);

// ---- vocab.c

#define NIB_VOCAB_ID_LIMIT (1 << 21) // the largest vocabularies in use have 2^18 ids

enum nib_token_flags {
    NIB_TOKEN_USED = 1,
    NIB_TOKEN_MERGED = 2, // merging can make it: found by its bytes
    NIB_TOKEN_SPECIAL = 4,
};

struct nib_vocab_token {
    uint32_t start, size; // in the pool
    uint32_t flags;       // 0: no token has this id
};

struct nib_vocab_slot {
    uint32_t tag;
    int32_t id; // -1: empty
};

struct nib_merge_slot {
    uint64_t pair; // left id << 32 | right id; all ones: empty
    uint32_t rank;
    int32_t id;
};

struct nib_vocab {
    struct nib_bytes pool;
    struct nib_vocab_token *tokens; // [size]
    int32_t size, capacity;
    struct nib_vocab_slot *slots; // [slot_mask + 1] by the bytes of the tokens
    size_t slot_mask;
    uint32_t longest;              // bytes of the longest token in `slots`
    int32_t byte_ids[256];         // the tokens of one byte; -1: none
    bool merges_by_rank;           // tiktoken: two tokens merge if their bytes are a token, its id being the rank
    struct nib_merge_slot *merges; // [merge_mask + 1] otherwise
    size_t merge_mask;
};

#define NIB_NO_MERGE UINT32_MAX

nib_status nib_vocab_add(struct nib_vocab *vocab, int64_t id, const void *bytes /* [size] */, size_t size,
                         uint32_t flags, struct nib_error *err);

// Builds `slots`, `byte_ids` and `longest` when all tokens are there.
nib_status nib_vocab_index(struct nib_vocab *vocab, struct nib_error *err);

// The mergeable token with these bytes, or -1.
int32_t nib_vocab_find(const struct nib_vocab *vocab, const uint8_t *bytes /* [size] */, size_t size);

// Room for `count` merges, then each of them; the last of equal pairs counts.
nib_status nib_vocab_reserve_merges(struct nib_vocab *vocab, size_t count, struct nib_error *err);
void nib_vocab_add_merge(struct nib_vocab *vocab, int32_t left, int32_t right, uint32_t rank, int32_t id);

// The merge of a pair; rank NIB_NO_MERGE when there is none.
struct nib_merge_slot nib_vocab_find_merge(const struct nib_vocab *vocab, int32_t left, int32_t right);

void nib_vocab_free(struct nib_vocab *vocab);

static inline const uint8_t *nib_vocab_bytes(const struct nib_vocab *vocab, int32_t id)
{
    return (const uint8_t *)vocab->pool.data + vocab->tokens[id].start;
}

// ---- split_pattern.c

// Whose regex syntax a pattern is written in: tokenizer.json means Oniguruma with Ruby's syntax, tiktoken means Rust's
// fancy-regex.
enum nib_regex_dialect { NIB_REGEX_ONIGURUMA, NIB_REGEX_RUST };

// Compiles for PCRE2, translating what is spelt differently and refusing what has no exact equal.
nib_status nib_split_pattern_compile(const char *pattern /* [size] */, size_t size, enum nib_regex_dialect dialect,
                                     pcre2_code **code, struct nib_error *err);

// The translation alone, appended to `out`.
nib_status nib_split_pattern_translate(const char *pattern /* [size] */, size_t size,
                                       enum nib_regex_dialect dialect, struct nib_bytes *out,
                                       struct nib_error *err);

// ---- the tokenizer

struct nib_added_token {
    uint32_t start, size; // its text, in the pool
    int32_t id;
    bool strip_left, strip_right; // it swallows the white space on that side
};

// Added tokens that are looked for in one pass, sorted by text.
struct nib_added_set {
    struct nib_added_token *tokens; // [count]
    size_t count;
    bool first[256]; // bytes that begin one
};

// A stage cuts every piece of the stage before: at the matches of `code`, or (no code) it puts a space in front of a
// piece that has none.
struct nib_split_stage {
    pcre2_code *code;
    bool drop_matches, drop_gaps;
};

#define NIB_SPLIT_STAGES 16

struct nib_tokenizer {
    struct nib_vocab vocab;
    struct nib_added_set added[2]; // tokenizer.json's not "normalized" tokens, which come first, and the others
    struct nib_split_stage stages[NIB_SPLIT_STAGES];
    size_t stage_count;
    bool nfc;         // text between the tokens of added[0] is normalised first
    bool whole_words; // a piece that is a token is that token, whatever merging would make of it
    int32_t unknown;  // stands for bytes that have no token; -1: they are dropped
    bool fuse_unknown;
};

// Appends to `set`; nib_added_set_sort when all are there, which refuses equal texts.
nib_status nib_added_set_add(struct nib_added_set *set, struct nib_vocab *vocab, const char *text /* [size] */,
                             size_t size, struct nib_added_token token, struct nib_error *err);
nib_status nib_added_set_sort(struct nib_added_set *set, const struct nib_vocab *vocab, struct nib_error *err);

// The longest token that begins at `p`, or NULL.
const struct nib_added_token *nib_added_set_match(const struct nib_added_set *set, const struct nib_vocab *vocab,
                                                  const uint8_t *p /* [size] */, size_t size);

// The readers of the two formats fill an all-zero tokenizer.
nib_status nib_tokenizer_read_json(struct nib_tokenizer *tokenizer, const char *bytes /* [size] */, size_t size,
                                   struct nib_error *err);
nib_status nib_tokenizer_read_ranks(struct nib_tokenizer *tokenizer, const char *bytes /* [size] */, size_t size,
                                    const struct nib_tokenizer_preset *preset, struct nib_error *err);

// ---- tokenizer_config.c

// The tokens of a tokenizer_config.json's added_tokens_decoder, {"ID": {"content": TEXT}}. Texts and array are one block
// for the caller to free; NULL where there is no such object.
nib_status nib_tokenizer_read_specials(const char *bytes /* [size] */, size_t size, const char *name,
                                       struct nib_named_token **specials, size_t *count, struct nib_error *err);

// ---- bpe.c

struct nib_bpe_symbol;

// Memory of one encode call, grown to its longest word; start from {0}.
struct nib_bpe_scratch {
    struct nib_bpe_symbol *symbols; // [capacity]
    uint64_t *heap;                 // [2 * capacity]
    size_t capacity;
};

void nib_bpe_scratch_free(struct nib_bpe_scratch *scratch);

// Appends the tokens of one piece, size in 1 … 2^31 - 1.
nib_status nib_bpe_encode_word(const struct nib_tokenizer *tokenizer, struct nib_bpe_scratch *scratch,
                               const uint8_t *bytes /* [size] */, size_t size, struct nib_token_list *list,
                               struct nib_error *err);

#endif
