// What holds for every format of turns: any stream comes back, and the vocabulary and model choose the format.
#include "support/turn_expect.h"

static const char *const formats[] = {"chatml", "mimo", "minimax", "kimi", "deepseek"};
enum { FORMATS = sizeof formats / sizeof *formats };

static uint64_t next_random(uint64_t *seed)
{
    *seed = *seed * 6364136223846793005u + 1442695040888963407u;
    return *seed >> 33;
}

static int32_t random_token(const struct nib_chat *chat, uint64_t *seed)
{
    uint64_t kind = next_random(seed) % 8;
    if (kind < 3)
        return TURN_CONTROLS + (int32_t)(next_random(seed) % chat->control_count);
    if (kind < 5)
        return TURN_WORDS + (int32_t)(next_random(seed) % TURN_WORD_COUNT);
    if (kind == 5)
        return (int32_t)(next_random(seed) % (TURN_TOKENS + 2)) - 1;
    return "{}\"\n :,namerguments`"[next_random(seed) % 20];
}

static void every_stream_comes_back(void **state)
{
    (void)state;
    int32_t stream[300];
    for (int f = 0; f < FORMATS; f++) {
        struct turn_vocabulary vocabulary = {0};
        struct nib_chat *chat = open_turns(&vocabulary, formats[f]);
        uint64_t seed = 1;
        for (int round = 0; round < 15000; round++) {
            size_t size = next_random(&seed) % (round % 100 ? 24 : 300);
            for (size_t i = 0; i < size; i++)
                stream[i] = random_token(chat, &seed);
            enum nib_chat_from from = next_random(&seed) & 1 ? NIB_CHAT_FROM_START : NIB_CHAT_FROM_REPLY;
            const char *fault = check_stream(chat, from, stream, size);
            if (fault)
                fail_msg("%s, round %d: %s", formats[f], round, fault);
        }
        nib_chat_close(chat);
    }
}

// Whatever order a stream has, what it shows is in the messages' texts or headers, which the stream can be made from; here:
// no call loses its arguments, and no answer what was said in it.
static void memory_of_tools_is_the_parsers(void **state)
{
    (void)state;
    struct turn_vocabulary vocabulary = {0};
    struct nib_chat *chat = open_turns(&vocabulary, "minimax");
    struct nib_chat_parser *parser;
    assert_int_equal(nib_chat_parser_create(chat, NIB_CHAT_FROM_REPLY, NULL, NULL, &parser, NULL), NIB_OK);
    char name[] = "f", parameters[] = "{\"properties\": {\"a\": {\"type\": \"integer\"}}}";
    struct nib_tool tool = {.name = nib_text_of(name), .parameters = nib_text_of(parameters)};
    nib_chat_parser_set_tools(parser, &tool, 1);
    memset(name, 'x', sizeof name - 1);
    memset(parameters, 'x', sizeof parameters - 1);
    int32_t tokens[200];
    size_t count = turn_tokens(chat,
                               "<minimax:tool_call><invoke name=\"f\"><parameter name=\"a\">1</parameter></invoke>"
                               "</minimax:tool_call>",
                               tokens);
    for (size_t i = 0; i < count; i++)
        nib_chat_parser_push(parser, tokens[i], NULL);
    assert_int_equal(nib_chat_parser_finish(parser, NULL), NIB_OK);
    assert_int_equal(nib_chat_parser_count(parser), 1);
    assert_true(nib_text_equal(nib_chat_parser_message(parser, 0)->text, nib_text_of("{\"a\": 1}")));
    nib_chat_parser_free(parser);
    nib_chat_close(chat);
}

// Without a system's turn in front.
static void expect_turns(const struct nib_chat *chat, const struct nib_conversation *conversation,
                         const char *expected)
{
    struct nib_pieces pieces = {0};
    assert_int_equal(nib_chat_render(chat, conversation, &pieces, NULL), NIB_OK);
    char *text = spell_pieces(chat, &pieces, 0);
    const char *found = strstr(text, expected);
    if (!found || strlen(found) != strlen(expected))
        fail_msg("%s: %s", nib_chat_name(chat), text);
    free(text);
    nib_pieces_free(&pieces);
}

// As the models' templates have it: a turn for each; only DeepSeek-V3.1's says just once who speaks.
static void what_the_assistant_says_twice_is_two_turns(void **state)
{
    (void)state;
    static const struct {
        const char *format, *absent, *expected;
    } cases[] = {
        {"chatml", NULL,
         "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\nA<|im_end|>\n<|im_start|>assistant\nB\n<tool_"
         "call>\n"
         "{\"name\": \"f\", \"arguments\": "
         "{}}\n</tool_call><|im_end|>\n<|im_start|>assistant\n<think>\nOld.\n</think>\n\nC<|im_end|>\n"},
        {"mimo", NULL,
         "<|im_start|>user\nHi<|im_end|><|im_start|>assistant\n<think></"
         "think>A<|im_end|><|im_start|>assistant\n<think>"
         "</think>B<tool_call>\n<function=f>\n</function>\n</"
         "tool_call><|im_end|><|im_start|>assistant\n<think>Old.</think>C"
         "<|im_end|>"},
        {"minimax", NULL,
         "]~b]user\nHi[e~[\n]~b]ai\nA[e~[\n]~b]ai\nB\n<minimax:tool_call>\n<invoke name=\"f\">\n</invoke>\n"
         "</minimax:tool_call>[e~[\n]~b]ai\n<think>\nOld.\n</think>\n\nC[e~[\n"},
        {"kimi", NULL,
         "<|im_user|>user<|im_middle|>Hi<|im_end|><|im_assistant|>assistant<|im_middle|><think></think>A<|im_end|>"
         "<|im_assistant|>assistant<|im_middle|><think></"
         "think>B<|tool_calls_section_begin|><|tool_call_begin|>functions.f:0"
         "<|tool_call_argument_begin|>{}<|tool_call_end|><|tool_calls_section_end|><|im_end|><|im_assistant|>"
         "assistant"
         "<|im_middle|><think></think>C<|im_end|>"},
        {"deepseek", NULL,
         "<｜User｜>Hi<｜Assistant｜></"
         "think>A<｜end▁of▁sentence｜>B<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>f<｜tool▁sep｜>{}"
         "<｜tool▁call▁end｜><｜tool▁calls▁end｜><｜end▁of▁sentence｜>C<｜end▁of▁sentence｜>"},
        {"deepseek", "<｜search▁begin｜>",
         "<｜User｜>Hi<｜Assistant｜>A<｜end▁of▁sentence｜><｜Assistant｜>B<｜tool▁calls▁begin｜><"
         "｜tool▁call▁begin｜>function"
         "<｜tool▁sep｜>f\n```json\n{}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜><｜end▁of▁sentence｜><"
         "｜Assistant｜>C"
         "<｜end▁of▁sentence｜>"},
    };
    const struct nib_message messages[] = {nib_message_user(nib_text_of("Hi")),
                                           nib_message_answer(nib_text_of("A")),
                                           nib_message_answer(nib_text_of("B")),
                                           nib_message_call(nib_text_of("functions.f"), nib_text_of("{}")),
                                           nib_message_answer(nib_text_of("")), // white space behind a call
                                           nib_message_reasoning(nib_text_of("Old.")),
                                           nib_message_answer(nib_text_of("C"))};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct turn_vocabulary vocabulary = {.absent = {cases[i].absent}};
        struct nib_chat *chat = open_turns(&vocabulary, cases[i].format);
        struct nib_conversation conversation = {.messages = messages, .message_count = 7, .no_reply = true};
        expect_turns(chat, &conversation, cases[i].expected);
        nib_chat_close(chat);
    }
}

// Texts that a model wrote in one turn, as around a call that is none, stay there.
static void what_a_model_says_at_a_time_is_one_turn(void **state)
{
    (void)state;
    struct turn_vocabulary vocabulary = {0};
    struct nib_chat *chat = open_turns(&vocabulary, "chatml");
    struct nib_message messages[] = {nib_message_answer(nib_text_of("A")), nib_message_answer(nib_text_of("B")),
                                     nib_message_answer(nib_text_of("C"))};
    messages[0].end = NIB_END_MESSAGE;
    messages[1].end = NIB_END_TURN;
    struct nib_conversation conversation = {.messages = messages, .message_count = 3, .no_reply = true};
    expect_turns(chat, &conversation, "<|im_start|>assistant\nAB<|im_end|>\n<|im_start|>assistant\nC<|im_end|>\n");
    nib_chat_close(chat);
}

static void expect_format(const char *of_vocabulary, const char *model_type, const char *expected)
{
    struct turn_vocabulary vocabulary = {.format = nib_chat_format_find(of_vocabulary)};
    struct nib_vocabulary of_chat = {&vocabulary, turn_control, turn_bytes};
    struct nib_chat *chat;
    assert_int_equal(nib_chat_open_fitting(&of_chat, model_type, &chat, NULL), NIB_OK);
    assert_string_equal(nib_chat_name(chat), expected);
    nib_chat_close(chat);
}

static void vocabulary_and_model_choose_the_format(void **state)
{
    (void)state;
    expect_format("harmony", "gpt_oss", "harmony");
    expect_format("chatml", "qwen3_moe", "chatml");
    expect_format("chatml", NULL, "chatml");
    expect_format("mimo", "mimo_v2_flash", "mimo"); // the same tokens
    expect_format("mimo", NULL, "chatml");
    expect_format("minimax", "minimax_m2", "minimax");
    expect_format("kimi", "kimi_k2", "kimi");
    expect_format("deepseek", "deepseek_v3", "deepseek");
    expect_format("harmony", "mimo_v2_flash", "harmony"); // the model's format needs other tokens
    struct turn_vocabulary vocabulary = {.format = nib_chat_format_find("chatml"), .absent = {"<|im_start|>"}};
    struct nib_vocabulary of_chat = {&vocabulary, turn_control, turn_bytes};
    struct nib_chat *chat;
    struct nib_error err;
    assert_int_equal(nib_chat_open_fitting(&of_chat, "mimo_v2", &chat, &err), NIB_ERR_NOT_FOUND);
    assert_non_null(strstr(err.message, "kimi"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_stream_comes_back),
        cmocka_unit_test(memory_of_tools_is_the_parsers),
        cmocka_unit_test(what_the_assistant_says_twice_is_two_turns),
        cmocka_unit_test(what_a_model_says_at_a_time_is_one_turn),
        cmocka_unit_test(vocabulary_and_model_choose_the_format),
    };
    return cmocka_run_group_tests_name("chat_turns", tests, NULL, NULL);
}
