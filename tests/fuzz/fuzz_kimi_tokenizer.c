// tiktoken.model with a tokenizer_config.json: the bytes up to the first NUL are the configuration, the rest is the rank
// file. What opens must encode any text into ids that give the text back.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "text/tokenizer_parts.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void require(bool fine, const char *what)
{
    if (!fine) {
        fprintf(stderr, "kimi tokenizer: %s\n", what);
        abort();
    }
}

static void round_trip(const struct nib_tokenizer *tokenizer, const char *text, size_t size)
{
    for (unsigned flags = NIB_ENCODE_PLAIN; flags <= NIB_ENCODE_SPECIAL; flags++) {
        struct nib_token_list ids = {0};
        struct nib_bytes back = {0};
        if (nib_tokenizer_encode(tokenizer, text, size, flags, &ids, NULL) == NIB_OK) {
            require(nib_tokenizer_decode(tokenizer, ids.ids, ids.count, &back, NULL) == NIB_OK, "an unknown id");
            require(back.size == size && (size == 0 || memcmp(back.data, text, size) == 0), "another text");
        }
        nib_token_list_free(&ids);
        nib_bytes_free(&back);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    const char *bytes = (const char *)data;
    const char *end = size ? memchr(bytes, '\0', size) : NULL;
    size_t length = end ? (size_t)(end - bytes) : size;
    struct nib_tokenizer_preset preset = *nib_tokenizer_preset_find("kimi_k2");
    struct nib_named_token *specials;
    struct nib_tokenizer *tokenizer = NULL;
    if (size > 1 << 18 ||
        nib_tokenizer_read_specials(bytes, length, "config", &specials, &preset.special_count, NULL) != NIB_OK)
        return 0;
    preset.specials = specials;
    if (end &&
        nib_tokenizer_open_memory(&tokenizer, end + 1, size - length - 1, "ranks", &preset, NULL) == NIB_OK) {
        round_trip(tokenizer, bytes, length);
        round_trip(tokenizer, "你好 world<|im_end|>'s 123456\r\n\xff", 34);
    }
    nib_tokenizer_close(tokenizer);
    free(specials);
    return 0;
}
