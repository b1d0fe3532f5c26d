// The harmony parser on well-formed streams, on those that broke other software, and on anything at all.
#include "nibble/chat.h"
#include "support/chat_property.h"

#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

static struct nib_chat *chat;

static int open_chat(void **state)
{
    (void)state;
    struct nib_vocabulary vocabulary = byte_vocabulary();
    return nib_chat_open(nib_chat_format_find("harmony"), &vocabulary, &chat, NULL) == NIB_OK ? 0 : -1;
}

static int close_chat(void **state)
{
    (void)state;
    nib_chat_close(chat);
    return 0;
}

// Control tokens spelled out in a stream become their ids, everything else its bytes.
static size_t tokenize(const char *stream, int32_t *tokens, size_t capacity)
{
    size_t count = 0;
    while (*stream && count < capacity) {
        size_t skip = 1;
        tokens[count] = (unsigned char)*stream;
        for (int i = 0; i < BYTE_WORDS - BYTE_CONTROLS; i++)
            if (strncmp(stream, byte_controls[i], strlen(byte_controls[i])) == 0) {
                tokens[count] = BYTE_CONTROLS + i;
                skip = strlen(byte_controls[i]);
            }
        stream += skip;
        count++;
    }
    return count;
}

static struct nib_chat_parser *parse_tokens(enum nib_chat_from from, const int32_t *tokens, size_t count)
{
    const char *fault = check_stream(chat, from, tokens, count);
    if (fault)
        fail_msg("%s", fault);
    struct nib_chat_parser *parser;
    assert_int_equal(nib_chat_parser_create(chat, from, NULL, NULL, &parser, NULL), NIB_OK);
    for (size_t i = 0; i < count; i++)
        assert_int_equal(nib_chat_parser_push(parser, tokens[i], NULL), NIB_OK);
    assert_int_equal(nib_chat_parser_finish(parser, NULL), NIB_OK);
    return parser;
}

// One line a message: role[:name][ to=recipient][@ if in the channel][ #channel][ type][!] end |text
static const char *describe(const struct nib_chat_parser *parser)
{
    static const char *const roles[] = {"system", "developer", "user", "assistant", "tool"};
    static const char *const ends[] = {"default", "message", "turn", "call", "text", "missing", "truncated"};
    static char out[8192];
    size_t at = 0;
    out[0] = '\0';
    for (size_t i = 0; i < nib_chat_parser_count(parser); i++) {
        const struct nib_message *m = nib_chat_parser_message(parser, i);
        at += (size_t)snprintf(out + at, sizeof out - at, "%s", roles[m->role]);
        const char *signs[] = {":", m->recipient_in_channel ? " @to=" : " to=", " #", m->constrained ? " !" : " "};
        struct nib_text fields[] = {m->name, m->recipient, m->channel, m->content_type};
        for (int f = 0; f < 4; f++)
            if (fields[f].size)
                at += (size_t)snprintf(out + at, sizeof out - at, "%s%.*s", signs[f], (int)fields[f].size,
                                       fields[f].bytes);
        at += (size_t)snprintf(out + at, sizeof out - at, " %s |%.*s\n", ends[m->end], (int)m->text.size,
                               m->text.size ? m->text.bytes : "");
        assert_true(at < sizeof out);
    }
    return out;
}

static void assert_parsed(enum nib_chat_from from, const char *stream, const char *wanted)
{
    int32_t tokens[2048];
    size_t count = tokenize(stream, tokens, 2048);
    struct nib_chat_parser *parser = parse_tokens(from, tokens, count);
    assert_string_equal(describe(parser), wanted);
    nib_chat_parser_free(parser);
}

static void assert_reply(const char *stream, const char *wanted)
{
    assert_parsed(NIB_CHAT_FROM_REPLY, stream, wanted);
}

static void test_reasoning_then_answer(void **state)
{
    (void)state;
    assert_reply(
        "<|channel|>analysis<|message|>2+2<|end|><|start|>assistant<|channel|>final<|message|>4<|return|>",
        "assistant #analysis message |2+2\nassistant #final turn |4\n");
}

static void test_whole_prompt(void **state)
{
    (void)state;
    assert_parsed(
        NIB_CHAT_FROM_START,
        "<|start|>system<|message|>S<|end|><|start|>user:ann<|message|>U\n<|end|>"
        "<|start|>functions.f to=assistant<|channel|>commentary<|message|>1<|end|><|start|>assistant",
        "system message |S\nuser:ann message |U\n\ntool:functions.f to=assistant #commentary message |1\n"
        "assistant truncated |\n");
}

// llama.cpp 15181, harmony 27: the recipient may stand in either section; constrain with or without a space.
static void test_llamacpp_15181_recipient_in_role_or_channel(void **state)
{
    (void)state;
    const char *in_channel = "assistant @to=functions.f #commentary !json call |{}\n";
    assert_reply("<|channel|>commentary to=functions.f <|constrain|>json<|message|>{}<|call|>", in_channel);
    assert_reply("<|channel|>commentary to=functions.f<|constrain|>json<|message|>{}<|call|>", in_channel);
    assert_reply(" to=functions.f<|channel|>commentary <|constrain|>json<|message|>{}<|call|>",
                 "assistant to=functions.f #commentary !json call |{}\n");
    assert_reply("<|channel|>commentary to=functions.f json<|message|>{}<|call|>",
                 "assistant @to=functions.f #commentary json call |{}\n");
    assert_reply("<|channel|>to=functions.f commentary<|message|>{}<|call|>",
                 "assistant @to=functions.f #commentary call |{}\n");
    assert_reply("<|channel|>commentary <|constrain|>json to=functions.f<|message|>{}<|call|>", in_channel);
    assert_parsed(NIB_CHAT_FROM_START,
                  "<|start|>assistant to=functions.f<|channel|>commentary<|message|>{}<|call|>",
                  "assistant to=functions.f #commentary call |{}\n");
}

// harmony 27: arguments cut off by a limit are still arguments, a header cut off is still a call.
static void test_harmony_27_truncated_call(void **state)
{
    (void)state;
    assert_reply("<|channel|>commentary to=functions.f <|constrain|>json<|message|>{\"city\": \"Par",
                 "assistant @to=functions.f #commentary !json truncated |{\"city\": \"Par\n");
    assert_reply("<|channel|>commentary to=functions.f <|constrain|>json",
                 "assistant @to=functions.f #commentary !json truncated |\n");
    assert_reply("<|channel|>commentary to=functions.f", "assistant @to=functions.f #commentary truncated |\n");
    assert_reply("<|channel|>commentary to=functions.f <|constrain|>json<|call|>",
                 "assistant @to=functions.f #commentary !json call |\n");
}

// harmony 38: a stray word in the header ("––commentary") raised an error in the middle of a stream.
static void test_harmony_38_stray_words_in_header(void **state)
{
    (void)state;
    assert_reply("<|channel|>commentary to=functions.f \u2013\u2013commentary code<|message|>{}<|call|>",
                 "assistant @to=functions.f #commentary \u2013\u2013commentary call |{}\n");
    assert_reply(" one two three<|channel|>final<|message|>x<|return|>", "assistant #final one turn |x\n");
    assert_reply("<|channel|>\u2013\u2013commentary<|message|>x<|return|>",
                 "assistant #\u2013\u2013commentary turn |x\n");
}

// vllm 23567: the same over several turns, with a word where <|start|> belongs.
static void test_vllm_23567_text_where_start_belongs(void **state)
{
    (void)state;
    assert_reply("<|channel|>analysis<|message|>a<|end|>comment<|channel|>final<|message|>b<|return|>",
                 "assistant #analysis message |a\nassistant #final comment turn |b\n");
    assert_reply("<|channel|>analysis<|message|>a<|end|>assistant<|channel|>final<|message|>b<|return|>",
                 "assistant #analysis message |a\nassistant #final turn |b\n");
    assert_reply("<|channel|>final<|message|>a<|end|>and more text.<|return|>",
                 "assistant #final message |a\nassistant turn |and more text.\n");
}

// vllm 51977: a recipient twice ("to=functions.web-browsing" left over) was a 500.
static void test_vllm_51977_recipient_twice(void **state)
{
    (void)state;
    assert_reply(" to=functions.web-browsing<|channel|>commentary to=functions.web-browsing<|message|>{}<|call|>",
                 "assistant @to=functions.web-browsing #commentary call |{}\n");
    assert_reply(
        "<|channel|>commentary to=functions.web-browsing to=functions.web-browsing json<|message|>{}<|call|>",
        "assistant @to=functions.web-browsing #commentary json call |{}\n");
}

static void test_no_header_is_an_answer(void **state)
{
    (void)state;
    assert_reply("Hello there<|return|>", "assistant turn |Hello there\n");
    assert_reply("Hello", "assistant truncated |Hello\n");
    assert_reply("I want to=be or not", "assistant truncated |I want to=be or not\n");
    assert_reply("<|channel|>final Hello there<|return|>", "assistant #final turn | Hello there\n");
    assert_reply("<|message|>Hello<|return|>", "assistant turn |Hello\n");
    assert_parsed(NIB_CHAT_FROM_START, "<|start|>assistant Hello<|end|>", "assistant message | Hello\n");
    assert_parsed(NIB_CHAT_FROM_START, "Hello", "assistant truncated |Hello\n");
}

static void test_tokens_in_odd_places(void **state)
{
    (void)state;
    assert_reply("", "");
    assert_reply("<|return|>", "assistant turn |\n");
    assert_reply("<|channel|>final<|message|>a<|channel|>final<|message|>b<|return|>",
                 "assistant #final missing |a\nassistant #final turn |b\n");
    assert_reply("<|channel|>analysis<|message|>a<|start|>assistant<|channel|>final<|message|>b<|endoftext|>",
                 "assistant #analysis missing |a\nassistant #final text |b\n");
    assert_reply("<|channel|>analysis<|channel|>final<|message|>b<|return|><|return|><|end|><|reserved|>",
                 "assistant #final turn |b\n");
    assert_reply("<|channel|>final<|message|>a<|message|>b<|constrain|>c<|reserved|>d<|end|>",
                 "assistant #final message |abcd\n");
    assert_reply("<|start|>assistant<|channel|>final<|message|>a<|return|>", "assistant #final turn |a\n");
    assert_parsed(NIB_CHAT_FROM_START, "<|end|><|start|><|start|>user<|message|>a",
                  "assistant message |\nuser truncated |a\n");
    assert_reply("<|channel|>secret<|message|>a<|return|>", "assistant #secret turn |a\n");
}

static void test_endless_header_is_shown_as_text(void **state)
{
    (void)state;
    int32_t tokens[3000];
    for (int i = 0; i < 3000; i++)
        tokens[i] = "word "[i % 5];
    struct heard heard = {0};
    struct nib_chat_parser *parser;
    assert_int_equal(nib_chat_parser_create(chat, NIB_CHAT_FROM_REPLY, hear, &heard, &parser, NULL), NIB_OK);
    for (int i = 0; i < 3000; i++)
        assert_int_equal(nib_chat_parser_push(parser, tokens[i], NULL), NIB_OK);
    assert_true(heard.open);
    assert_int_equal(heard.size, 3000);
    nib_chat_parser_free(parser); // in the middle of a message
    free(heard.text);
    nib_chat_parser_free(parse_tokens(NIB_CHAT_FROM_REPLY, tokens, 3000));
}

static void test_characters_are_not_cut(void **state)
{
    (void)state;
    static const char smile[] = "\xf0\x9f\x98\x80";
    struct heard heard = {0};
    struct nib_chat_parser *parser;
    assert_int_equal(nib_chat_parser_create(chat, NIB_CHAT_FROM_REPLY, hear, &heard, &parser, NULL), NIB_OK);
    nib_chat_parser_push(parser, byte_control(NULL, "<|message|>"), NULL);
    for (int i = 0; i < 4; i++) {
        nib_chat_parser_push(parser, (unsigned char)smile[i], NULL);
        assert_int_equal(heard.size, i < 3 ? 0 : 4);
    }
    nib_chat_parser_push(parser, 0xe2, NULL); // begins a character that never comes
    assert_int_equal(heard.size, 4);
    nib_chat_parser_push(parser, 'x', NULL);
    assert_int_equal(heard.size, 6);
    nib_chat_parser_push(parser, 0xe2, NULL);
    nib_chat_parser_finish(parser, NULL);
    assert_null(heard.fault);
    assert_int_equal(nib_chat_parser_message(parser, 0)->text.size, 7);
    nib_chat_parser_free(parser);
    free(heard.text);
}

static void test_finish_is_final(void **state)
{
    (void)state;
    struct nib_chat_parser *parser = parse_tokens(NIB_CHAT_FROM_REPLY, (int32_t[]){'a'}, 1);
    struct nib_error err = {0};
    assert_int_equal(nib_chat_parser_finish(parser, &err), NIB_OK);
    assert_int_equal(nib_chat_parser_push(parser, 'b', &err), NIB_ERR_ARGUMENT);
    assert_int_equal(nib_chat_parser_count(parser), 1);
    assert_null(nib_chat_parser_message(parser, 1));
    nib_chat_parser_free(parser);
    nib_chat_parser_free(NULL);
}

static uint64_t next_random(uint64_t *seed)
{
    *seed ^= *seed << 13;
    *seed ^= *seed >> 7;
    return *seed ^= *seed << 17;
}

// Structure is made likely: otherwise nearly every stream is one endless header.
static int32_t random_token(uint64_t *seed)
{
    switch (next_random(seed) % 8) {
    case 0:
    case 1:
    case 2:
        return BYTE_CONTROLS + (int32_t)(next_random(seed) % (BYTE_WORDS - BYTE_CONTROLS));
    case 3:
    case 4:
        return BYTE_WORDS + (int32_t)(next_random(seed) % (BYTE_TOKENS - BYTE_WORDS));
    case 5:
        return (int32_t)(next_random(seed) % 256);
    case 6:
        return next_random(seed) % 16 ? ' ' : (int32_t)next_random(seed);
    default:
        return 'a' + (int32_t)(next_random(seed) % 26);
    }
}

static void test_every_stream_is_rendered_back(void **state)
{
    (void)state;
    uint64_t seed = 88172645463325252u;
    int32_t stream[400];
    for (int round = 0; round < 30000; round++) {
        size_t size = next_random(&seed) % (round % 100 ? 24 : 400);
        for (size_t i = 0; i < size; i++)
            stream[i] = random_token(&seed);
        enum nib_chat_from from = next_random(&seed) & 1 ? NIB_CHAT_FROM_START : NIB_CHAT_FROM_REPLY;
        const char *fault = check_stream(chat, from, stream, size);
        if (fault)
            fail_msg("round %d: %s", round, fault);
    }
}

// Every stream of up to four of the tokens that steer the parser.
static void test_every_short_stream_is_rendered_back(void **state)
{
    (void)state;
    enum { KINDS = 14 };
    static const int32_t kinds[KINDS] = {256, 257, 258, 259, 260, 261,        262,
                                         263, 265, 'a', ' ', -1,  BYTE_WORDS, BYTE_WORDS + 4};
    int32_t stream[4];
    for (int size = 0, total = 1; size <= 4; size++, total *= KINDS)
        for (int code = 0; code < total; code++) {
            for (int i = 0, rest = code; i < size; i++, rest /= KINDS)
                stream[i] = kinds[rest % KINDS];
            for (int from = 0; from < 2; from++) {
                const char *fault = check_stream(chat, (enum nib_chat_from)from, stream, (size_t)size);
                if (fault)
                    fail_msg("stream %d of %d tokens: %s", code, size, fault);
            }
        }
}

static void test_hostile_million(void **state)
{
    (void)state;
    enum { MILLION = 1000000 };
    static const char *const patterns[] = {
        "<|end|>",    "<|start|>",    "<|channel|>", "<|channel|><|message|>", "a",
        "<|start|>a", "<|reserved|>", "<|message|>", "<|message|><|end|>"};
    for (size_t p = 0; p < sizeof patterns / sizeof *patterns; p++) {
        int32_t unit[16];
        size_t size = tokenize(patterns[p], unit, 16);
        struct nib_chat_parser *parser;
        assert_int_equal(nib_chat_parser_create(chat, NIB_CHAT_FROM_START, NULL, NULL, &parser, NULL), NIB_OK);
        for (size_t i = 0; i < MILLION; i++)
            assert_int_equal(nib_chat_parser_push(parser, unit[i % size], NULL), NIB_OK);
        assert_int_equal(nib_chat_parser_finish(parser, NULL), NIB_OK);
        size_t count;
        nib_chat_parser_tokens(parser, &count);
        assert_int_equal(count, MILLION);
        nib_chat_parser_free(parser);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_reasoning_then_answer),
        cmocka_unit_test(test_whole_prompt),
        cmocka_unit_test(test_llamacpp_15181_recipient_in_role_or_channel),
        cmocka_unit_test(test_harmony_27_truncated_call),
        cmocka_unit_test(test_harmony_38_stray_words_in_header),
        cmocka_unit_test(test_vllm_23567_text_where_start_belongs),
        cmocka_unit_test(test_vllm_51977_recipient_twice),
        cmocka_unit_test(test_no_header_is_an_answer),
        cmocka_unit_test(test_tokens_in_odd_places),
        cmocka_unit_test(test_endless_header_is_shown_as_text),
        cmocka_unit_test(test_characters_are_not_cut),
        cmocka_unit_test(test_finish_is_final),
        cmocka_unit_test(test_every_stream_is_rendered_back),
        cmocka_unit_test(test_every_short_stream_is_rendered_back),
        cmocka_unit_test(test_hostile_million),
    };
    return cmocka_run_group_tests(tests, open_chat, close_chat);
}
