// Any file, any text: FILE NUL TEXT. A file that begins with '{' is a tokenizer.json; otherwise its first line is the
// split pattern of a preset and the rest a rank file.
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "nibble/tokenizer.h"

#define TEXT_LIMIT 1024 // a hostile pattern may take long at each byte

static void require(bool holds)
{
    if (!holds)
        abort();
}

static struct nib_tokenizer *open_any(const char *file, size_t size)
{
    static const struct nib_named_token specials[] = {{"<|end|>", 1000}, {"<|end|><|start|>", 1001}};
    struct nib_tokenizer *tokenizer = NULL;
    struct nib_error err = {0};
    if (size > 0 && file[0] == '{') {
        if (nib_tokenizer_open_memory(&tokenizer, file, size, "fuzz", NULL, &err) != NIB_OK)
            require(err.message[0] != '\0' && tokenizer == NULL);
        return tokenizer;
    }
    const char *newline = memchr(file, '\n', size);
    size_t length = newline ? (size_t)(newline - file) : size;
    char *pattern = malloc(length + 1);
    require(pattern != NULL);
    memcpy(pattern, file, length);
    pattern[length] = '\0';
    struct nib_tokenizer_preset preset = {
        .name = "fuzz", .pattern = pattern, .specials = specials, .special_count = 2};
    size_t rest = newline ? length + 1 : size;
    if (nib_tokenizer_open_memory(&tokenizer, file + rest, size - rest, "fuzz", &preset, &err) != NIB_OK)
        require(err.message[0] != '\0' && tokenizer == NULL);
    free(pattern);
    return tokenizer;
}

// The text through the stream, cut in two.
static void stream_text(const char *text, size_t size, size_t cut, struct nib_bytes *out)
{
    struct nib_utf8_stream stream = {0};
    require(nib_utf8_stream_push(&stream, text, cut, out, NULL) == NIB_OK);
    require(nib_utf8_stream_push(&stream, text + cut, size - cut, out, NULL) == NIB_OK);
    require(nib_utf8_stream_flush(&stream, out, NULL) == NIB_OK);
}

static void check_stream(const char *text, size_t size)
{
    struct nib_bytes whole = {0}, cut = {0};
    stream_text(text, size, 0, &whole);
    stream_text(text, size, size / 2, &cut);
    require(whole.size == cut.size && (whole.size == 0 || memcmp(whole.data, cut.data, whole.size) == 0));
    nib_bytes_free(&whole);
    nib_bytes_free(&cut);
}

static void check_encode(const struct nib_tokenizer *tokenizer, const char *text, size_t size, unsigned flags,
                         bool exact)
{
    struct nib_token_list list = {0};
    struct nib_bytes back = {0};
    if (nib_tokenizer_encode(tokenizer, text, size, flags, &list, NULL) == NIB_OK) {
        require(nib_tokenizer_decode(tokenizer, list.ids, list.count, &back, NULL) == NIB_OK);
        require(!exact || (back.size == size && (size == 0 || memcmp(back.data, text, size) == 0)));
    }
    nib_token_list_free(&list);
    nib_bytes_free(&back);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    const char *file = (const char *)data, *separator = size ? memchr(data, 0, size) : NULL;
    size_t file_size = separator ? (size_t)(separator - file) : size;
    const char *text = separator ? separator + 1 : file + size;
    size_t text_size = size - (size_t)(text - file);
    if (text_size > TEXT_LIMIT)
        text_size = TEXT_LIMIT;
    check_stream(text, text_size);
    struct nib_tokenizer *tokenizer = open_any(file, file_size);
    if (!tokenizer)
        return 0;
    bool ranks = file_size == 0 || file[0] != '{';
    check_encode(tokenizer, text, text_size, NIB_ENCODE_PLAIN, ranks);
    check_encode(tokenizer, text, text_size, NIB_ENCODE_SPECIAL, ranks);
    nib_tokenizer_close(tokenizer);
    return 0;
}
