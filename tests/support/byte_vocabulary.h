// A vocabulary that needs no file: token 0..255 is that byte, then come harmony's control tokens, two control tokens
// that mean nothing to it, a few whole words as a real tokenizer has them, and ChatML's control tokens.
#ifndef NIB_TEST_BYTE_VOCABULARY_H
#define NIB_TEST_BYTE_VOCABULARY_H

#include "nibble/chat.h"

enum { BYTE_CONTROLS = 256, BYTE_WORDS = 266, BYTE_TOKENS = 290, BYTE_IM_START = 290, BYTE_IM_END = 291 };

static const char *const byte_controls[] = {"<|start|>",       "<|end|>",     "<|message|>", "<|channel|>",
                                            "<|constrain|>",   "<|return|>",  "<|call|>",    "<|endoftext|>",
                                            "<|startoftext|>", "<|reserved|>"};

static const char *const byte_words[] = {"assistant",
                                         "user",
                                         "system",
                                         "functions",
                                         " to=functions.f",
                                         " to=",
                                         "analysis",
                                         "final",
                                         "commentary",
                                         " json",
                                         "json",
                                         ":x",
                                         "{\"a\":1}",
                                         "\xc3\xa9",
                                         "\xf0\x9f\x98",
                                         "\x80\xe2\x82",
                                         " ",
                                         "tool",
                                         "<think>",
                                         "</think>",
                                         "<tool_call>",
                                         "</tool_call>",
                                         "\n",
                                         "user\n"};

static inline int32_t byte_control(const void *self, const char *spelling)
{
    (void)self;
    for (int i = 0; i < BYTE_WORDS - BYTE_CONTROLS; i++)
        if (strcmp(spelling, byte_controls[i]) == 0)
            return BYTE_CONTROLS + i;
    if (strcmp(spelling, "<|im_start|>") == 0)
        return BYTE_IM_START;
    return strcmp(spelling, "<|im_end|>") == 0 ? BYTE_IM_END : -1;
}

static inline struct nib_text byte_bytes(const void *self, int32_t token)
{
    const char *bytes = self; // 0..255
    if (token >= 0 && token < BYTE_CONTROLS)
        return (struct nib_text){bytes + token, 1};
    if (token >= BYTE_WORDS && token < BYTE_TOKENS)
        return nib_text_of(byte_words[token - BYTE_WORDS]);
    return (struct nib_text){0};
}

static inline struct nib_vocabulary byte_vocabulary(void)
{
    static char bytes[256];
    for (int i = 0; i < 256; i++)
        bytes[i] = (char)i;
    return (struct nib_vocabulary){bytes, byte_control, byte_bytes};
}

// Tokens of pieces, one a byte. Returns how many; at most `capacity` are stored.
static inline size_t byte_encode(const struct nib_pieces *pieces, int32_t *tokens, size_t capacity)
{
    size_t count = 0;
    for (size_t i = 0; i < pieces->count; i++) {
        const struct nib_piece *piece = &pieces->items[i];
        for (size_t b = 0; b < piece->text.size; b++, count++)
            if (count < capacity)
                tokens[count] = (unsigned char)piece->text.bytes[b];
        if (piece->text.size == 0) {
            if (count < capacity)
                tokens[count] = piece->control;
            count++;
        }
    }
    return count;
}

// The same for a stream: words are taken apart into bytes, so that two streams can be compared.
static inline size_t byte_spell(const int32_t *stream, size_t size, int32_t *tokens, size_t capacity)
{
    struct nib_vocabulary vocabulary = byte_vocabulary();
    size_t count = 0;
    for (size_t i = 0; i < size; i++) {
        struct nib_text text = vocabulary.bytes(vocabulary.self, stream[i]);
        struct nib_piece piece = {text, stream[i]};
        struct nib_pieces one = {.items = &piece, .count = 1};
        size_t room = count < capacity ? capacity - count : 0;
        count += byte_encode(&one, tokens + (room ? count : 0), room);
    }
    return count;
}

#endif
