// The masks of tokens that follow from a schema, at a vocabulary of 200,000.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/bandwidth.h"
#include "support/compiled_schema.h"
#include "support/paths.h"
#include "text/token_mask.h"

static const char mixed_schema[] = "{\"type\":\"object\",\"properties\":{\"name\":{\"type\":\"string\"},\"age\":{"
                                   "\"type\":\"integer\",\"minimum\":0,\"maximum\":130},"
                                   "\"tags\":{\"type\":\"array\",\"items\":{\"type\":\"string\",\"maxLength\":12}}"
                                   ",\"mail\":{\"type\":\"string\",\"pattern\":"
                                   "\"^[a-z]+@[a-z]+$\"},\"kind\":{\"enum\":[\"one\",\"two\"]},\"more\":{\"type\":"
                                   "\"object\",\"additionalProperties\":{\"type\":\"string\"},"
                                   "\"properties\":{\"x\":{\"type\":\"string\",\"minLength\":3}}}},\"required\":["
                                   "\"name\",\"age\",\"tags\",\"mail\",\"kind\",\"more\"]}";
static const char mixed_text[] = "{\"name\": \"Jörg \\\"the 🦀\\\" Müller, who lives in a house by the sea\", "
                                 "\"age\": 42, \"tags\": [\"alpha\", \"beta gamma\", \"\"],"
                                 "\n  \"mail\": \"joerg@example\", \"kind\": \"two\", \"more\": {\"x\": \"long "
                                 "enough\", \"note\": \"Some more text, and some more.\"}}";

static struct nib_tokenizer *open_o200k(void)
{
    struct nib_tokenizer *tokenizer;
    struct nib_error err;
    const char *path = test_data("tokenizer/o200k_base.tiktoken");
    assert_int_equal(nib_tokenizer_open(&tokenizer, path, nib_tokenizer_preset_find("o200k_harmony"), &err),
                     NIB_OK);
    return tokenizer;
}

static int compare_doubles(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

// Along a text that the schema accepts every mask holds the next token, and equals the plain walk's. Prints what mask and
// step cost.
static void test_masks_at_vocabulary_200000(void **state)
{
    (void)state;
    struct nib_tokenizer *tokenizer = open_o200k();
    struct nib_mask_vocabulary *vocabulary;
    struct nib_token_list tokens = {0};
    struct nib_token_mask mask;
    struct nib_error err;
    struct compiled c;
    double times[256];
    int32_t vocab = nib_tokenizer_vocab_size(tokenizer);
    assert_true(vocab > 200000);
    assert_int_equal(nib_mask_vocabulary_create(tokenizer, vocab, &vocabulary, &err), NIB_OK);
    assert_int_equal(nib_tokenizer_encode(tokenizer, mixed_text, strlen(mixed_text), 0, &tokens, &err), NIB_OK);
    uint32_t *walked = malloc((size_t)nib_mask_words(vocabulary) * sizeof *walked);
    for (int pass = 0; pass < 2; pass++) { // first timed on a fresh automaton, then compared
        compile(&c, mixed_schema);
        assert_int_equal(nib_token_mask_init(&mask, vocabulary, &c.automaton, &err), NIB_OK);
        int32_t config = c.automaton.first;
        for (size_t i = 0; i < tokens.count; i++) {
            double started = nib_clock();
            const uint32_t *bits = nib_token_mask_at(&mask, config);
            int32_t token = tokens.ids[i];
            assert_non_null(bits);
            assert_true(bits[token / 32] >> (token % 32) & 1);
            if (pass == 1) {
                assert_int_equal(nib_token_mask_walk(&mask, config, walked), NIB_OK);
                assert_memory_equal(walked, bits, (size_t)nib_mask_words(vocabulary) * sizeof *walked);
            }
            config = nib_token_mask_step(&mask, config, token);
            times[i] = nib_clock() - started;
            assert_true(config >= 0);
        }
        assert_true(c.automaton.configs[config]->accepting);
        if (pass == 0) {
            qsort(times, tokens.count, sizeof *times, compare_doubles);
            double median = times[tokens.count / 2] * 1e6, most = times[tokens.count - 1] * 1e6;
            print_message("masks of %d tokens: median %.1f us, p90 %.1f us, most %.1f us over %zu tokens\n", vocab,
                          median, times[tokens.count * 9 / 10] * 1e6, most, tokens.count);
        }
        nib_token_mask_free(&mask);
        release(&c);
    }
    free(walked);
    nib_token_list_free(&tokens);
    nib_mask_vocabulary_free(vocabulary);
    nib_tokenizer_close(tokenizer);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_masks_at_vocabulary_200000),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
