// Formats of turns in tests: vocabularies that need no file, and the property of streams of their tokens.
#ifndef NIB_TEST_TURNS_H
#define NIB_TEST_TURNS_H

#include <stdbool.h>

#include "support/chat_property.h"

// Tokens 0 to 255 are bytes; then come the format's control tokens in their order, and a few words.
enum { TURN_CONTROLS = 256, TURN_WORDS = 300 };

static const char *const turn_words[] = {"assistant",     "user\n",
                                         "tool",          "ai\n",
                                         "functions.f:0", "{\"a\": 1}",
                                         "<function=f>",  "<invoke name=\"f\">",
                                         "</invoke>",     "</function>",
                                         "<parameter=a>", "<parameter name=\"a\">",
                                         "</parameter>",  "```json\n",
                                         "\n```",         "\n\n",
                                         "\xc3",          "{\"name\": \"f\", \"arguments\": {}}",
                                         "function",      "system\n"};
enum { TURN_WORD_COUNT = sizeof turn_words / sizeof *turn_words, TURN_TOKENS = TURN_WORDS + TURN_WORD_COUNT };

struct turn_vocabulary {
    const struct nib_chat_format *format;
    const char *absent[4]; // controls that this vocabulary lacks
};

static inline int32_t turn_control(const void *self, const char *spelling)
{
    const struct turn_vocabulary *vocabulary = self;
    for (size_t i = 0; i < 4; i++)
        if (vocabulary->absent[i] && strcmp(vocabulary->absent[i], spelling) == 0)
            return -1;
    for (int32_t i = 0; i < NIB_CHAT_CONTROLS && vocabulary->format->controls[i].spelling; i++)
        if (strcmp(vocabulary->format->controls[i].spelling, spelling) == 0)
            return TURN_CONTROLS + i;
    return -1;
}

// Special tokens, which show nothing, are those that look like it; DeepSeek's tool tokens are not, as in its vocabulary.
static inline struct nib_text turn_bytes(const void *self, int32_t token)
{
    static char bytes[256];
    const struct turn_vocabulary *vocabulary = self;
    if (token >= 0 && token < 256) {
        bytes[token] = (char)token;
        return (struct nib_text){bytes + token, 1};
    }
    if (token >= TURN_WORDS && token < TURN_TOKENS)
        return nib_text_of(turn_words[token - TURN_WORDS]);
    if (token < TURN_CONTROLS || token >= TURN_CONTROLS + NIB_CHAT_CONTROLS)
        return (struct nib_text){0};
    const char *spelling = vocabulary->format->controls[token - TURN_CONTROLS].spelling;
    bool special = !spelling || strncmp(spelling, "<|", 2) == 0 || *spelling == '[' || *spelling == ']' ||
                   strstr(spelling, "sentence");
    return special ? (struct nib_text){0} : nib_text_of(spelling);
}

static inline struct nib_chat *open_turns(struct turn_vocabulary *vocabulary, const char *format)
{
    struct nib_chat *chat;
    vocabulary->format = nib_chat_format_find(format);
    struct nib_vocabulary of_chat = {vocabulary, turn_control, turn_bytes};
    if (!vocabulary->format || nib_chat_open(vocabulary->format, &of_chat, &chat, NULL))
        abort();
    return chat;
}

// For fuzzers: the first byte chooses where the stream begins, then each is a token, those from 0xc0 on controls and words.
static inline void check_turn_bytes(const char *format, const uint8_t *data, size_t size)
{
    if (size == 0 || size > 1 << 16)
        return;
    struct turn_vocabulary vocabulary = {0};
    struct nib_chat *chat = open_turns(&vocabulary, format);
    int32_t *stream = calloc(size, sizeof *stream);
    if (!stream)
        abort();
    for (size_t i = 1; i < size; i++) {
        int32_t other = (data[i] - 0xc0) % (NIB_CHAT_CONTROLS + TURN_WORD_COUNT);
        stream[i - 1] = data[i] < 0xc0              ? data[i]
                        : other < NIB_CHAT_CONTROLS ? TURN_CONTROLS + other
                                                    : TURN_WORDS + other - NIB_CHAT_CONTROLS;
    }
    const char *fault =
        check_stream(chat, data[0] & 1 ? NIB_CHAT_FROM_REPLY : NIB_CHAT_FROM_START, stream, size - 1);
    if (fault) {
        fprintf(stderr, "%s: %s\n", format, fault);
        abort();
    }
    free(stream);
    nib_chat_close(chat);
}

#endif
