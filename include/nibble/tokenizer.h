// Text to token ids and back, for byte-level BPE tokenizers: Hugging Face tokenizer.json and tiktoken rank files.
//
// Ids equal those of the `tokenizers` library (encode with add_special_tokens=False) and of tiktoken. Text is any
// bytes: what is not UTF-8 is encoded as it stands, each such byte being to the split pattern the control character
// U+001A, and decoding the ids returns the same bytes (unless the file itself asks for a prefix space, strips
// around an added token, removes what its pattern matches, or lacks tokens for some bytes).
//
// A tokenizer does not change after it is opened: any number of threads may use one. Lists, buffers and streams
// belong to one thread at a time.
#ifndef NIBBLE_TOKENIZER_H
#define NIBBLE_TOKENIZER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "nibble/status.h"

#ifdef __cplusplus
extern "C" {
#endif
#pragma GCC visibility push(default)

struct nib_tokenizer;

struct nib_named_token {
    const char *text;
    int32_t id;
};

// What a rank file does not say itself. The caller's strings are not needed after opening.
struct nib_tokenizer_preset {
    const char *name;
    const char *pattern;                    // split pattern in the regex syntax tiktoken uses
    const struct nib_named_token *specials; // [special_count]
    size_t special_count;
    size_t reserved; // so many ids behind the ranks are special; one without a name is <|reserved_token_ID|>
};

// A built-in preset, or NULL: "o200k_harmony", gpt-oss's tokenizer on the ranks of o200k_base; "kimi_k2", Kimi's on its
// tiktoken.model, with the special tokens of Kimi-K2-Instruct.
const struct nib_tokenizer_preset *nib_tokenizer_preset_find(const char *name);

// Opens `path`: a tokenizer.json, a rank file (*.tiktoken, tiktoken.model), or a folder, which is searched for
// tokenizer.json, then for one *.tiktoken, then for tiktoken.model. A rank file's pattern and specials come from `preset`,
// or without one from its name: o200k*.tiktoken is o200k_harmony; tiktoken.model is kimi_k2, whose specials a
// tokenizer_config.json beside it names. A tokenizer.json needs no preset. NIB_ERR_UNSUPPORTED names whatever in a tokenizer.json is not byte-level BPE (another model type, a
// normalizer, another pre-tokenizer, regex syntax outside the common ground). The caller closes *tokenizer.
nib_status nib_tokenizer_open(struct nib_tokenizer **tokenizer, const char *path,
                              const struct nib_tokenizer_preset *preset, struct nib_error *err);

// The same from the bytes of a file: of a tokenizer.json if `preset` is NULL, else of a rank file. `name` stands for
// the path in messages. The bytes are not needed afterwards.
nib_status nib_tokenizer_open_memory(struct nib_tokenizer **tokenizer, const void *bytes /* [size] */, size_t size,
                                     const char *name, const struct nib_tokenizer_preset *preset,
                                     struct nib_error *err);

void nib_tokenizer_close(struct nib_tokenizer *tokenizer); // NULL is fine

// The highest id + 1; ids below it may be unused. A model's logits may be wider (padding rows).
int32_t nib_tokenizer_vocab_size(const struct nib_tokenizer *tokenizer);

// The bytes a token stands for (not NUL-terminated, owned by the tokenizer), or NULL when no token has this id.
const uint8_t *nib_tokenizer_token_bytes(const struct nib_tokenizer *tokenizer, int32_t id, size_t *size);

// The id of an added token (special or not) by its exact text, "<|end|>"; -1 when there is none.
int32_t nib_tokenizer_find_added(const struct nib_tokenizer *tokenizer, const char *text);

// True for control tokens: tokens a tokenizer.json marks special, and the specials of a preset. Any id may be asked.
bool nib_tokenizer_is_special(const struct nib_tokenizer *tokenizer, int32_t id);

// A growing list of ids; start from {0}, free in the end. Functions append.
struct nib_token_list {
    int32_t *ids; // [count]
    size_t count, capacity;
};

void nib_token_list_free(struct nib_token_list *list); // leaves an empty list
nib_status nib_token_list_add(struct nib_token_list *list, int32_t id, struct nib_error *err);

enum nib_encode_flags {
    // User text: nothing in it becomes an added token; "<|end|>" is encoded as those seven characters.
    NIB_ENCODE_PLAIN = 0,
    // Rendered prompts, from the program itself: the text of an added token, special or not, is that token.
    NIB_ENCODE_SPECIAL = 1,
};

// Appends the ids of `text` to `list`. No begin- or end-of-text token is added. Fails for want of memory, for a text
// of 2 GiB or more, or when a tokenizer.json's own pattern backtracks without end (NIB_ERR_LIMIT); `list` then keeps
// what it had before.
nib_status nib_tokenizer_encode(const struct nib_tokenizer *tokenizer, const char *text /* [size] */, size_t size,
                                unsigned flags, struct nib_token_list *list, struct nib_error *err);

// Growing bytes; start from {0}, free in the end. A NUL, not counted, follows the last byte once data is set.
struct nib_bytes {
    char *data; // [size]
    size_t size, capacity;
};

void nib_bytes_free(struct nib_bytes *out); // leaves an empty buffer
nib_status nib_bytes_append(struct nib_bytes *out, const void *bytes /* [size] */, size_t size,
                            struct nib_error *err);

// Appends the exact bytes of `ids`, special tokens included; they need not be UTF-8. An id without a token is
// NIB_ERR_ARGUMENT, and `out` then keeps what it had before.
nib_status nib_tokenizer_decode(const struct nib_tokenizer *tokenizer, const int32_t *ids /* [count] */,
                                size_t count, struct nib_bytes *out, struct nib_error *err);

// Bytes in, whole UTF-8 characters out: an unfinished character waits inside until its last byte comes. Start from
// {0}. Invalid bytes become U+FFFD, one for each longest run that could have begun a character (as browsers and
// Python do), so the output is the same however the bytes were cut into pushes.
struct nib_utf8_stream {
    uint8_t pending[4];
    uint8_t pending_size;
};

nib_status nib_utf8_stream_push(struct nib_utf8_stream *stream, const void *bytes /* [size] */, size_t size,
                                struct nib_bytes *out, struct nib_error *err);

// Pushes the bytes of a token; an id without a token is NIB_ERR_ARGUMENT.
nib_status nib_utf8_stream_push_token(struct nib_utf8_stream *stream, const struct nib_tokenizer *tokenizer,
                                      int32_t id, struct nib_bytes *out, struct nib_error *err);

// No more will come: what still waits becomes U+FFFD. The stream is as new afterwards.
nib_status nib_utf8_stream_flush(struct nib_utf8_stream *stream, struct nib_bytes *out, struct nib_error *err);

#pragma GCC visibility pop
#ifdef __cplusplus
}
#endif
#endif
