// ChatML: prompts as Qwen3 reads them, streams to messages, and every stream back again.
#include "support/chat_property.h"

#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

static struct nib_chat *chat;

static int open_chat(void **state)
{
    (void)state;
    struct nib_vocabulary vocabulary = byte_vocabulary();
    return (int)nib_chat_open(nib_chat_format_find("chatml"), &vocabulary, &chat, NULL);
}

static int close_chat(void **state)
{
    (void)state;
    nib_chat_close(chat);
    return 0;
}

// Pieces as text, control tokens spelled out.
static void spell(const struct nib_pieces *pieces, char *out, size_t capacity)
{
    size_t used = 0;
    for (size_t i = 0; i < pieces->count && used < capacity; i++) {
        struct nib_text text = pieces->items[i].text;
        if (text.size == 0)
            text = nib_text_of(pieces->items[i].control == BYTE_IM_START ? "<|im_start|>" : "<|im_end|>");
        used += (size_t)snprintf(out + used, capacity - used, "%.*s", (int)text.size, text.bytes);
    }
}

static void expect_prompt(const struct nib_conversation *conversation, const char *expected)
{
    struct nib_pieces pieces = {0};
    char text[4096] = "";
    assert_int_equal(nib_chat_render(chat, conversation, &pieces, NULL), NIB_OK);
    spell(&pieces, text, sizeof text);
    assert_string_equal(text, expected);
    nib_pieces_free(&pieces);
}

static void prompts_are_as_qwen_reads_them(void **state)
{
    (void)state;
    const struct nib_message messages[] = {
        nib_message_user(nib_text_of("Hi")),
        nib_message_reasoning(nib_text_of("A greeting.")),
        nib_message_answer(nib_text_of("Hello!")),
        nib_message_user(nib_text_of("Weather in Rome?")),
        nib_message_reasoning(nib_text_of("Ask.")),
        nib_message_call(nib_text_of("functions.weather"), nib_text_of("{\"city\":\"Rome\"}")),
        nib_message_result(nib_text_of("functions.weather"), nib_text_of("sunny")),
    };
    struct nib_conversation conversation = {
        .instructions = nib_text_of("Be brief."), .messages = messages, .message_count = 7};
    expect_prompt(&conversation,
                  "<|im_start|>system\nBe brief.<|im_end|>\n"
                  "<|im_start|>user\nHi<|im_end|>\n"
                  "<|im_start|>assistant\nHello!<|im_end|>\n"
                  "<|im_start|>user\nWeather in Rome?<|im_end|>\n"
                  "<|im_start|>assistant\n<think>\nAsk.\n</think>\n\n<tool_call>\n{\"name\": \"weather\", "
                  "\"arguments\": {\"city\":\"Rome\"}}\n</tool_call>\n<|im_end|>\n"
                  "<|im_start|>user\n<tool_response>\nsunny\n</tool_response><|im_end|>\n"
                  "<|im_start|>assistant\n");
    const struct nib_tool tool = {.name = nib_text_of("weather"),
                                  .description = nib_text_of("Says \"how\" it is."),
                                  .parameters = nib_text_of("{\"type\": \"object\"}")};
    conversation = (struct nib_conversation){.tools = &tool, .tool_count = 1, .no_reply = true};
    expect_prompt(
        &conversation,
        "<|im_start|>system\n# Tools\n\nYou may call one or more functions to assist with the user query.\n\n"
        "You are provided with function signatures within <tools></tools> XML tags:\n<tools>\n{\"type\": "
        "\"function\", \"function\": {\"name\": \"weather\", \"description\": \"Says \\\"how\\\" it is.\", "
        "\"parameters\": {\"type\": \"object\"}}}\n</tools>\n\nFor each function call, return a json object "
        "with function name and arguments within <tool_call></tool_call> XML tags:\n<tool_call>\n{\"name\": "
        "<function-name>, \"arguments\": <args-json-object>}\n</tool_call><|im_end|>\n");
    struct nib_tool broken = tool;
    broken.parameters = nib_text_of("{");
    conversation.tools = &broken;
    struct nib_pieces pieces = {0};
    assert_int_equal(nib_chat_render(chat, &conversation, &pieces, NULL), NIB_ERR_ARGUMENT);
    nib_pieces_free(&pieces);
}

// A stream: tags and words are whole tokens, {START} and {END} the control tokens, the rest is bytes.
static size_t tokens_of(const char *text, int32_t *tokens)
{
    static const struct {
        const char *text;
        int32_t token;
    } whole[] = {{"<think>", 284},      {"</think>", 285},          {"<tool_call>", 286},
                 {"</tool_call>", 287}, {"{START}", BYTE_IM_START}, {"{END}", BYTE_IM_END}};
    size_t count = 0;
    while (*text) {
        size_t i = 0, n = sizeof whole / sizeof *whole;
        while (i < n && strncmp(text, whole[i].text, strlen(whole[i].text)) != 0)
            i++;
        tokens[count++] = i < n ? whole[i].token : (unsigned char)*text;
        text += i < n ? strlen(whole[i].text) : 1;
    }
    return count;
}

struct expected {
    enum nib_role role;
    const char *channel, *recipient, *text;
    enum nib_end end;
};

static void expect_messages(enum nib_chat_from from, const char *stream, const struct expected *expected, size_t n)
{
    int32_t tokens[512];
    size_t count = tokens_of(stream, tokens);
    struct nib_chat_parser *parser;
    assert_null(check_stream(chat, from, tokens, count));
    assert_int_equal(nib_chat_parser_create(chat, from, NULL, NULL, &parser, NULL), NIB_OK);
    for (size_t i = 0; i < count; i++)
        assert_int_equal(nib_chat_parser_push(parser, tokens[i], NULL), NIB_OK);
    assert_int_equal(nib_chat_parser_finish(parser, NULL), NIB_OK);
    assert_int_equal(nib_chat_parser_count(parser), n);
    for (size_t i = 0; i < n; i++) {
        const struct nib_message *message = nib_chat_parser_message(parser, i);
        assert_int_equal(message->role, expected[i].role);
        assert_true(nib_text_equal(message->channel, nib_text_of(expected[i].channel)));
        assert_true(nib_text_equal(message->recipient, nib_text_of(expected[i].recipient)));
        assert_true(nib_text_equal(message->text, nib_text_of(expected[i].text)));
        assert_int_equal(message->end, expected[i].end);
    }
    nib_chat_parser_free(parser);
}

static void replies_are_reasoning_answers_and_calls(void **state)
{
    (void)state;
    const enum nib_role a = NIB_ROLE_ASSISTANT;
    expect_messages(NIB_CHAT_FROM_REPLY, "Hello!{END}", &(struct expected){a, "final", "", "Hello!", NIB_END_TURN},
                    1);
    const struct expected thought[] = {{a, "analysis", "", "\nHm.\n", NIB_END_MESSAGE},
                                       {a, "final", "", "Yes.", NIB_END_TURN}};
    expect_messages(NIB_CHAT_FROM_REPLY, "<think>\nHm.\n</think>\n\nYes.{END}", thought, 2);
    const struct expected calls[] = {{a, "final", "", "Look:", NIB_END_MESSAGE},
                                     {a, "commentary", "functions.f", "{\"x\":1}", NIB_END_CALL},
                                     {a, "commentary", "functions.g", "{}", NIB_END_CALL}};
    expect_messages(NIB_CHAT_FROM_REPLY,
                    "Look:<tool_call>\n{\"name\": \"f\", \"arguments\": {\"x\": 1}}\n</tool_call>\n"
                    "<tool_call>\n{\"name\": \"g\", \"arguments\": {}}\n</tool_call>{END}",
                    calls, 3);
    expect_messages(NIB_CHAT_FROM_REPLY, "<tool_call>{oops</tool_call>",
                    &(struct expected){a, "final", "", "<tool_call>{oops</tool_call>", NIB_END_MESSAGE}, 1);
    expect_messages(NIB_CHAT_FROM_REPLY, "<think>and th",
                    &(struct expected){a, "analysis", "", "and th", NIB_END_TRUNCATED}, 1);
    const struct expected turns[] = {{NIB_ROLE_USER, "", "", "Hi", NIB_END_TURN},
                                     {a, "final", "", "Ho", NIB_END_TURN}};
    expect_messages(NIB_CHAT_FROM_START, "{START}user\nHi{END}\n{START}assistant\nHo{END}", turns, 2);
}

static uint64_t next_random(uint64_t *seed)
{
    *seed = *seed * 6364136223846793005u + 1442695040888963407u;
    return *seed >> 33;
}

static void every_stream_comes_back(void **state)
{
    (void)state;
    uint64_t seed = 1;
    int32_t stream[300];
    for (int round = 0; round < 20000; round++) {
        size_t size = next_random(&seed) % (round % 100 ? 24 : 300);
        for (size_t i = 0; i < size; i++) {
            uint64_t kind = next_random(&seed) % 4;
            stream[i] = kind == 0   ? BYTE_IM_START + (int32_t)(next_random(&seed) % 3)
                        : kind == 1 ? 284 + (int32_t)(next_random(&seed) % 6)
                        : kind == 2 ? (int32_t)(next_random(&seed) % BYTE_TOKENS)
                                    : "{}\"\n :,namerguments"[next_random(&seed) % 19];
        }
        enum nib_chat_from from = next_random(&seed) & 1 ? NIB_CHAT_FROM_START : NIB_CHAT_FROM_REPLY;
        const char *fault = check_stream(chat, from, stream, size);
        if (fault)
            fail_msg("round %d: %s", round, fault);
    }
}

static void the_vocabulary_chooses_the_format(void **state)
{
    (void)state;
    struct nib_vocabulary vocabulary = byte_vocabulary();
    struct nib_chat *fitting;
    assert_int_equal(nib_chat_open_fitting(&vocabulary, &fitting, NULL), NIB_OK);
    nib_chat_close(fitting);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(prompts_are_as_qwen_reads_them),
        cmocka_unit_test(replies_are_reasoning_answers_and_calls),
        cmocka_unit_test(every_stream_comes_back),
        cmocka_unit_test(the_vocabulary_chooses_the_format),
    };
    return cmocka_run_group_tests_name("chatml", tests, open_chat, close_chat);
}
