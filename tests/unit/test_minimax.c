// MiniMax-M2: prompts as its tool calling guide and chat template have them (derived by hand), and its replies.
#include "support/turn_expect.h"

static struct turn_vocabulary vocabulary;
static struct nib_chat *chat;

static int open_chat(void **state)
{
    (void)state;
    chat = open_turns(&vocabulary, "minimax");
    return 0;
}

static int close_chat(void **state)
{
    (void)state;
    nib_chat_close(chat);
    return 0;
}

static void prompts_are_as_minimax_reads_them(void **state)
{
    (void)state;
    const struct nib_message messages[] = {
        nib_message_user(nib_text_of("Hi")),
        nib_message_reasoning(nib_text_of("A greeting.")),
        nib_message_answer(nib_text_of("Hello!")),
        nib_message_user(nib_text_of("Go on")),
        nib_message_reasoning(nib_text_of("Both.")),
        nib_message_answer(nib_text_of("Let me see.")),
        nib_message_call(nib_text_of("functions.f"),
                         nib_text_of("{\"city\": \"Rome\", \"n\": [1, true], \"b\": true}")),
        nib_message_call(nib_text_of("functions.g"), nib_text_of("{}")),
        nib_message_result(nib_text_of("functions.f"), nib_text_of("sunny")),
        nib_message_result(nib_text_of("functions.g"), nib_text_of("rain")),
    };
    const struct nib_tool tool = {.name = nib_text_of("f"), .parameters = nib_text_of("{\"type\":\"object\"}")};
    struct nib_conversation conversation = {
        .messages = messages, .message_count = 10, .tools = &tool, .tool_count = 1};
    expect_prompt(
        chat, &conversation,
        "]~!b[]~b]system\nYou are a helpful assistant.\n\n# Tools\nYou may call one or more tools to assist with "
        "the "
        "user query.\nHere are the tools available in JSONSchema format:\n\n<tools>\n<tool>{\"name\": \"f\", "
        "\"parameters\": {\"type\": \"object\"}}</tool>\n</tools>\n\nWhen making tool calls, use XML format to "
        "invoke "
        "tools and pass parameters:\n\n<minimax:tool_call>\n<invoke name=\"tool-name-1\">\n<parameter "
        "name=\"param-key-1\">param-value-1</parameter>\n<parameter "
        "name=\"param-key-2\">param-value-2</parameter>\n"
        "...\n</invoke>\n</minimax:tool_call>[e~[\n"
        "]~b]user\nHi[e~[\n]~b]ai\nHello![e~[\n]~b]user\nGo on[e~[\n"
        "]~b]ai\n<think>\nBoth.\n</think>\n\nLet me see.\n<minimax:tool_call>\n<invoke name=\"f\">\n<parameter "
        "name=\"city\">Rome</parameter>\n<parameter name=\"n\">[1, true]</parameter>\n<parameter name=\"b\">true"
        "</parameter>\n</invoke>\n<invoke name=\"g\">\n</invoke>\n</minimax:tool_call>[e~[\n"
        "]~b]tool\n<response>sunny</response>\n<response>rain</response>[e~[\n"
        "]~b]ai\n<think>\n",
        "<think>\n");
    conversation.effort = NIB_EFFORT_NONE;
    expect_refusal(chat, &conversation, "minimax");
}

static void demanded_calls_are_begun(void **state)
{
    (void)state;
    const struct nib_message call = nib_message_call(nib_text_of("functions.f"), (struct nib_text){0});
    struct nib_conversation conversation = {.instructions = nib_text_of("x"), .reply = &call};
    expect_prompt(
        chat, &conversation,
        "]~!b[]~b]system\nx[e~[\n]~b]ai\n<think>\n\n</think>\n\n<minimax:tool_call>\n<invoke name=\"f\">\n",
        "<think>\n\n</think>\n\n<minimax:tool_call>\n<invoke name=\"f\">\n");
}

static void replies(void **state)
{
    (void)state;
    static const struct nib_tool tools[] = {
        {.name = {"search", 6}, .parameters = {"{\"properties\": {\"tags\": {\"type\": \"array\"}}}", 43}}};
    const enum nib_role a = NIB_ROLE_ASSISTANT;
    const struct expected_message expected[] = {
        {a, "analysis", "", "Two searches.", NIB_END_MESSAGE, ""},
        {a, "final", "", "Searching.", NIB_END_MESSAGE, ""},
        {a, "commentary", "functions.search", "{\"tags\": [\"a\", \"b\"], \"q\": \"x < y\"}", NIB_END_CALL, ""},
        {a, "commentary", "functions.search", "{\"tags\": []}", NIB_END_CALL, ""}};
    // The prompt has opened the thought, and its tokens come first.
    expect_messages(
        chat, tools, 1, NIB_CHAT_FROM_REPLY,
        "<think>\nTwo searches.\n</think>\n\nSearching.\n<minimax:tool_call>\n<invoke name=\"search\">\n"
        "<parameter name=\"tags\">[\"a\", \"b\"]</parameter>\n<parameter name=\"q\">x < y</parameter>\n"
        "</invoke>\n<invoke name='search'><parameter name=tags>[]</parameter></invoke>\n"
        "</minimax:tool_call>[e~[",
        expected, 4);
    const char *cut = "<minimax:tool_call>\n<invoke name=\"search\">";
    expect_messages(chat, tools, 1, NIB_CHAT_FROM_REPLY, cut,
                    &(struct expected_message){a, "final", "", cut, NIB_END_TRUNCATED, ""}, 1);
    const struct expected_message turns[] = {{NIB_ROLE_USER, "", "", "Hi", NIB_END_TURN, ""},
                                             {a, "final", "", "Ho", NIB_END_TURN, ""},
                                             {NIB_ROLE_TOOL, "", "", "<response>x</response>", NIB_END_TURN, ""}};
    expect_messages(chat, NULL, 0, NIB_CHAT_FROM_START,
                    "]~b]user\nHi[e~[\n]~b]ai\nHo[e~[\n]~b]tool\n<response>x</response>[e~[", turns, 3);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(prompts_are_as_minimax_reads_them),
        cmocka_unit_test(demanded_calls_are_begun),
        cmocka_unit_test(replies),
    };
    return cmocka_run_group_tests_name("minimax", tests, open_chat, close_chat);
}
