// ChatML: prompts as Qwen3 reads them, and its replies. Expected prompts are derived by hand from its chat template.
#include "support/turn_expect.h"

static struct turn_vocabulary vocabulary;
static struct nib_chat *chat;

static int open_chat(void **state)
{
    (void)state;
    chat = open_turns(&vocabulary, "chatml");
    return 0;
}

static int close_chat(void **state)
{
    (void)state;
    nib_chat_close(chat);
    return 0;
}

static void prompts_are_as_qwen_reads_them(void **state)
{
    (void)state;
    const struct nib_message messages[] = {
        nib_message_user(nib_text_of("Hi")),
        nib_message_reasoning(nib_text_of("A greeting.")),
        nib_message_answer(nib_text_of("Hello!")),
        nib_message_user(nib_text_of("Weather in Rome and Oslo?")),
        nib_message_reasoning(nib_text_of("Ask.")),
        nib_message_answer(nib_text_of("Let me see.")),
        nib_message_call(nib_text_of("functions.weather"), nib_text_of("{\"city\": \"Rome\"}")),
        nib_message_call(nib_text_of("functions.weather"), nib_text_of("{\"city\": \"Oslo\"}")),
        nib_message_result(nib_text_of("functions.weather"), nib_text_of("sunny")),
        nib_message_result(nib_text_of("functions.weather"), nib_text_of("rain")),
    };
    struct nib_conversation conversation = {
        .instructions = nib_text_of("Be brief."), .messages = messages, .message_count = 10};
    expect_prompt(chat, &conversation,
                  "<|im_start|>system\nBe brief.<|im_end|>\n"
                  "<|im_start|>user\nHi<|im_end|>\n"
                  "<|im_start|>assistant\nHello!<|im_end|>\n"
                  "<|im_start|>user\nWeather in Rome and Oslo?<|im_end|>\n"
                  "<|im_start|>assistant\n<think>\nAsk.\n</think>\n\nLet me see.\n<tool_call>\n{\"name\": "
                  "\"weather\", \"arguments\": {\"city\": \"Rome\"}}\n</tool_call>\n<tool_call>\n{\"name\": "
                  "\"weather\", \"arguments\": {\"city\": \"Oslo\"}}\n</tool_call><|im_end|>\n"
                  "<|im_start|>user\n<tool_response>\nsunny\n</tool_response>\n<tool_response>\nrain\n"
                  "</tool_response><|im_end|>\n"
                  "<|im_start|>assistant\n",
                  "");
    conversation = (struct nib_conversation){.messages = messages, .message_count = 3, .keep_reasoning = true};
    conversation.effort = NIB_EFFORT_NONE;
    expect_prompt(chat, &conversation,
                  "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n<think>\nA greeting.\n</think>\n\nHello!"
                  "<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n",
                  "<think>\n\n</think>\n\n");
}

static void tools_are_told(void **state)
{
    (void)state;
    const struct nib_tool tool = {.name = nib_text_of("weather"),
                                  .description = nib_text_of("Says \"how\" it is."),
                                  .parameters = nib_text_of("{\"type\":\"object\",\"minimum\":0.1}")};
    struct nib_conversation conversation = {.tools = &tool, .tool_count = 1, .no_reply = true};
    expect_prompt(
        chat, &conversation,
        "<|im_start|>system\n# Tools\n\nYou may call one or more functions to assist with the user query.\n\n"
        "You are provided with function signatures within <tools></tools> XML tags:\n<tools>\n{\"type\": "
        "\"function\", \"function\": {\"name\": \"weather\", \"description\": \"Says \\\"how\\\" it is.\", "
        "\"parameters\": {\"type\": \"object\", \"minimum\": 0.1}}}\n</tools>\n\nFor each function call, return a "
        "json object with function name and arguments within <tool_call></tool_call> XML tags:\n<tool_call>\n"
        "{\"name\": <function-name>, \"arguments\": <args-json-object>}\n</tool_call><|im_end|>\n",
        "");
    struct nib_tool odd = tool;
    odd.parameters = nib_text_of("{\"const\": \"\\u0000\", \"maximum\": 0.30000000000000004}");
    conversation.tools = &odd;
    struct nib_pieces pieces = {0};
    assert_int_equal(nib_chat_render(chat, &conversation, &pieces, NULL), NIB_OK);
    char *prompt = spell_pieces(chat, &pieces, 0);
    assert_non_null(strstr(prompt, "{\"const\": \"\\u0000\", \"maximum\": 0.30000000000000004}"));
    free(prompt);
    nib_pieces_free(&pieces);
    struct nib_tool broken = tool;
    broken.parameters = nib_text_of("{");
    conversation.tools = &broken;
    expect_refusal(chat, &conversation, "weather");
}

static void demanded_replies_are_begun(void **state)
{
    (void)state;
    const struct nib_message call = nib_message_call(nib_text_of("functions.f"), nib_text_of("{"));
    struct nib_conversation conversation = {.reply = &call};
    const char *begun = "<tool_call>\n{\"name\": \"f\", \"arguments\": {";
    char prompt[200];
    snprintf(prompt, sizeof prompt, "<|im_start|>assistant\n%s", begun);
    expect_prompt(chat, &conversation, prompt, begun);
}

static void from_reply(const char *stream, const struct expected_message *expected, size_t n)
{
    expect_messages(chat, NULL, 0, NIB_CHAT_FROM_REPLY, stream, expected, n);
}

static void replies_are_reasoning_answers_and_calls(void **state)
{
    (void)state;
    const enum nib_role a = NIB_ROLE_ASSISTANT;
    from_reply("Hello!<|im_end|>", &(struct expected_message){a, "final", "", "Hello!", NIB_END_TURN, ""}, 1);
    const struct expected_message thought[] = {{a, "analysis", "", "Hm.\n\nSo.", NIB_END_MESSAGE, ""},
                                               {a, "final", "", "Yes.\n", NIB_END_TURN, ""}};
    from_reply("<think>\nHm.\n\nSo.\n</think>\n\nYes.\n<|im_end|>", thought, 2);
    from_reply("<think>\n\n</think>\n\nYes.\n<|im_end|>", thought + 1, 1);
    const struct expected_message calls[] = {
        {a, "final", "", "Look:", NIB_END_MESSAGE, ""},
        {a, "commentary", "functions.f", "{\"x\": [1, 0.1]}", NIB_END_CALL, ""},
        {a, "commentary", "functions.g", "{}", NIB_END_CALL, ""}};
    from_reply("Look:\n<tool_call>\n{\"name\": \"f\", \"arguments\": {\"x\": [1, 0.1]}}\n</tool_call>\n"
               "<tool_call>\n{\"arguments\": {}, \"name\": \"g\"}\n</tool_call><|im_end|>",
               calls, 3);
    const struct expected_message nested = {
        a, "commentary", "functions.f", "{\"arguments\": {\"arguments\": 1}}", NIB_END_CALL, ""};
    from_reply("<tool_call>{\"name\": \"f\", \"arguments\": {\"arguments\": {\"arguments\": 1}}}</tool_call>",
               &nested, 1);
    static const char tags[] = "{\"s\": \"\\\"<tool_call>\\\\</tool_call>\", \"t\": \"<think>\"}";
    char stream[200];
    snprintf(stream, sizeof stream, "<tool_call>\n{\"name\": \"f\", \"arguments\": %s}\n</tool_call>", tags);
    from_reply(stream, &(struct expected_message){a, "commentary", "functions.f", tags, NIB_END_CALL, ""}, 1);
    static const char large[] = "{\"id\": 12345678901234567890, \"s\": \"\\u0000\"}";
    snprintf(stream, sizeof stream, "<tool_call>\n{\"name\": \"f\", \"arguments\": %s}\n</tool_call>", large);
    from_reply(stream, &(struct expected_message){a, "commentary", "functions.f", large, NIB_END_CALL, ""}, 1);
    from_reply("<tool_call>\n{\"name\": \"g\", \"arguments\": null}\n</tool_call>", &calls[2], 1);
}

static void calls_may_lack_the_tag_behind_them(void **state)
{
    (void)state;
    const enum nib_role a = NIB_ROLE_ASSISTANT;
    const struct expected_message calls[] = {{a, "commentary", "functions.f", "{\"x\": 1}", NIB_END_CALL, ""},
                                             {a, "commentary", "functions.g", "{}", NIB_END_CALL, ""}};
    from_reply("<tool_call>\n{\"name\": \"f\", \"arguments\": {\"x\": 1}}\n<tool_call>\n{\"name\": \"g\", "
               "\"arguments\": {}}\n<|im_end|>",
               calls, 2);
    static const char broken[] = "<tool_call>\n{\"name\": \"f\"\n";
    char stream[80];
    snprintf(stream, sizeof stream, "%s<|im_end|>", broken);
    from_reply(stream, &(struct expected_message){a, "final", "", broken, NIB_END_TURN, ""}, 1);
}

static void the_first_line_may_be_indented(void **state)
{
    (void)state;
    const enum nib_role a = NIB_ROLE_ASSISTANT;
    const struct expected_message indented[] = {{a, "analysis", "", "  - So.", NIB_END_MESSAGE, ""},
                                                {a, "final", "", "    return x", NIB_END_MESSAGE, ""},
                                                {a, "commentary", "functions.f", "{}", NIB_END_CALL, ""}};
    from_reply("<think>\n  - So.\n</think>\n \n    return x\n<tool_call>\n{\"name\": \"f\", \"arguments\": {}}\n"
               "</tool_call>",
               indented, 3);
}

static void what_is_odd_is_text(void **state)
{
    (void)state;
    const enum nib_role a = NIB_ROLE_ASSISTANT;
    from_reply("<tool_call>{oops</tool_call>",
               &(struct expected_message){a, "final", "", "<tool_call>{oops</tool_call>", NIB_END_MESSAGE, ""}, 1);
    static const char nameless[] = "<tool_call>{\"name\": \"\", \"arguments\": {}}</tool_call>";
    from_reply(nameless, &(struct expected_message){a, "final", "", nameless, NIB_END_MESSAGE, ""}, 1);
    from_reply("<tool_call>{\"name\": \"f\"",
               &(struct expected_message){a, "final", "", "<tool_call>{\"name\": \"f\"", NIB_END_TRUNCATED, ""},
               1);
    from_reply("<think>and th", &(struct expected_message){a, "analysis", "", "and th", NIB_END_TRUNCATED, ""}, 1);
    from_reply("<think>a<tool_call>b",
               &(struct expected_message){a, "analysis", "", "a<tool_call>b", NIB_END_TRUNCATED, ""}, 1);
    from_reply("a</think>b", &(struct expected_message){a, "final", "", "a</think>b", NIB_END_TRUNCATED, ""}, 1);
    const struct expected_message turns[] = {{NIB_ROLE_USER, "", "", "Hi\n", NIB_END_TURN, ""},
                                             {a, "final", "", "Ho", NIB_END_TURN, ""}};
    expect_messages(chat, NULL, 0, NIB_CHAT_FROM_START,
                    "<|im_start|>user\nHi\n<|im_end|>\n<|im_start|>assistant\nHo<|im_end|>", turns, 2);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(prompts_are_as_qwen_reads_them),
        cmocka_unit_test(tools_are_told),
        cmocka_unit_test(demanded_replies_are_begun),
        cmocka_unit_test(replies_are_reasoning_answers_and_calls),
        cmocka_unit_test(calls_may_lack_the_tag_behind_them),
        cmocka_unit_test(the_first_line_may_be_indented),
        cmocka_unit_test(what_is_odd_is_text),
    };
    return cmocka_run_group_tests_name("chatml", tests, open_chat, close_chat);
}
