// A program of somebody else: the likeliest token behind a text, with the installed library.
#include <nibble/engine.h>
#include <nibble/tokenizer.h>
#include <nibble/version.h>
#include <stdio.h>
#include <string.h>

static int fail(const struct nib_error *err)
{
    fprintf(stderr, "%s\n", err->message);
    return 1;
}

int main(int argc, char **argv)
{
    static const char text[] = "Once upon a";
    struct nib_engine_options options = {.max_sequences = 1, .context = 64};
    struct nib_engine *engine;
    struct nib_tokenizer *tokenizer;
    struct nib_sequence *sequence;
    struct nib_token_list ids = {0};
    struct nib_bytes word = {0};
    struct nib_error err;
    if (argc != 2)
        return 2;
    if (nib_engine_open(argv[1], &options, &engine, &err) || nib_tokenizer_open(&tokenizer, argv[1], NULL, &err) ||
        nib_tokenizer_encode(tokenizer, text, strlen(text), NIB_ENCODE_PLAIN, &ids, &err) ||
        nib_sequence_create(engine, &sequence, &err))
        return fail(&err);
    struct nib_feed feed = {sequence, ids.ids, (int32_t)ids.count, NIB_OUTPUTS_LAST};
    if (nib_engine_step(engine, &feed, 1, &err))
        return fail(&err);
    const float *logits = nib_engine_logits(engine, 0);
    int32_t best = 0;
    for (int32_t i = 1; i < nib_engine_vocab(engine); i++)
        if (logits[i] > logits[best])
            best = i;
    if (nib_tokenizer_decode(tokenizer, &best, 1, &word, &err))
        return fail(&err);
    printf("nibble %s: %s%s\n", NIB_VERSION, text, word.data);
    nib_bytes_free(&word);
    nib_token_list_free(&ids);
    nib_sequence_free(sequence);
    nib_tokenizer_close(tokenizer);
    nib_engine_close(engine);
    return 0;
}
