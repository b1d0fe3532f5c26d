// tokenizer_pipe FILE [PRESET]: the tokenizer behind a pipe, for tokenizer_oracle.py, which builds it.
// In: flags u32, size u32, text. Out: count u32, ids i32; count 0xffffffff, size u32 and a message on an error.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "nibble/tokenizer.h"

static void put_u32(uint32_t value)
{
    fwrite(&value, sizeof value, 1, stdout);
}

static void answer_error(const struct nib_error *err)
{
    put_u32(UINT32_MAX);
    put_u32((uint32_t)strlen(err->message));
    fputs(err->message, stdout);
    fflush(stdout);
}

int main(int argc, char **argv)
{
    struct nib_tokenizer *tokenizer;
    struct nib_error err;
    const struct nib_tokenizer_preset *preset = argc > 2 ? nib_tokenizer_preset_find(argv[2]) : NULL;
    if (argc < 2 || nib_tokenizer_open(&tokenizer, argv[1], preset, &err) != NIB_OK) {
        fprintf(stderr, "%s\n", argc < 2 ? "tokenizer_pipe FILE [PRESET]" : err.message);
        return 1;
    }
    uint32_t head[2];
    while (fread(head, sizeof head, 1, stdin) == 1) {
        char *text = malloc(head[1] ? head[1] : 1);
        struct nib_token_list list = {0};
        if (!text || fread(text, 1, head[1], stdin) != head[1])
            return 1;
        if (nib_tokenizer_encode(tokenizer, text, head[1], head[0], &list, &err) != NIB_OK) {
            answer_error(&err);
        } else {
            put_u32((uint32_t)list.count);
            if (list.count > 0)
                fwrite(list.ids, sizeof *list.ids, list.count, stdout);
            fflush(stdout);
        }
        nib_token_list_free(&list);
        free(text);
    }
    nib_tokenizer_close(tokenizer);
    return 0;
}
