// DeepSeek-V3, R1 and V3.1: prompts as their chat templates write them (derived by hand), and their replies.
#include "support/turn_expect.h"

static struct turn_vocabulary of_v3 = {.absent = {"<think>", "</think>", "<｜search▁begin｜>"}},
                              of_r1 = {.absent = {"<｜search▁begin｜>"}}, of_v31;
static struct nib_chat *v3, *r1, *v31;

static int open_chats(void **state)
{
    (void)state;
    v3 = open_turns(&of_v3, "deepseek");
    r1 = open_turns(&of_r1, "deepseek");
    v31 = open_turns(&of_v31, "deepseek");
    return 0;
}

static int close_chats(void **state)
{
    (void)state;
    nib_chat_close(v3);
    nib_chat_close(r1);
    nib_chat_close(v31);
    return 0;
}

static struct nib_conversation greeting(void)
{
    static struct nib_message messages[4];
    messages[0] = nib_message_user(nib_text_of("Hi"));
    messages[1] = nib_message_reasoning(nib_text_of("A greeting."));
    messages[2] = nib_message_answer(nib_text_of("Hello!"));
    messages[3] = nib_message_user(nib_text_of("And?"));
    return (struct nib_conversation){
        .instructions = nib_text_of("Be brief."), .messages = messages, .message_count = 4};
}

#define HISTORY_BEGIN "<｜begin▁of▁sentence｜>Be brief.<｜User｜>Hi<｜Assistant｜>"
#define HISTORY_END "Hello!<｜end▁of▁sentence｜><｜User｜>And?<｜Assistant｜>"

static void prompts(void **state)
{
    (void)state;
    struct nib_conversation conversation = greeting();
    expect_prompt(v3, &conversation, HISTORY_BEGIN HISTORY_END, "");
    expect_prompt(r1, &conversation, HISTORY_BEGIN HISTORY_END "<think>\n", "<think>\n");
    expect_prompt(v31, &conversation, HISTORY_BEGIN "</think>" HISTORY_END "<think>", "<think>");
    conversation.effort = NIB_EFFORT_NONE;
    expect_prompt(v3, &conversation, HISTORY_BEGIN HISTORY_END, "");
    expect_prompt(r1, &conversation, HISTORY_BEGIN HISTORY_END "<think>\n\n</think>\n\n",
                  "<think>\n\n</think>\n\n");
    expect_prompt(v31, &conversation, HISTORY_BEGIN "</think>" HISTORY_END "</think>", "</think>");
}

static void calls_and_results(void **state)
{
    (void)state;
    const struct nib_message messages[] = {
        nib_message_user(nib_text_of("Weather?")),
        nib_message_call(nib_text_of("functions.f"), nib_text_of("{\"a\": 1}")),
        nib_message_call(nib_text_of("functions.g"), nib_text_of("{}")),
        nib_message_result(nib_text_of("functions.f"), nib_text_of("sunny")),
        nib_message_result(nib_text_of("functions.g"), nib_text_of("rain")),
        nib_message_answer(nib_text_of("Both.")),
    };
    struct nib_conversation conversation = {.messages = messages, .message_count = 6, .no_reply = true};
    expect_prompt(
        v3, &conversation,
        "<｜begin▁of▁sentence｜><｜User｜>Weather?<｜Assistant｜><｜tool▁calls▁begin｜><｜tool▁call▁begin｜>"
        "function"
        "<｜tool▁sep｜>f\n```json\n{\"a\": "
        "1}\n```<｜tool▁call▁end｜>\n<｜tool▁call▁begin｜>function<｜tool▁sep｜>g\n"
        "```json\n{}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜><｜end▁of▁sentence｜><｜tool▁outputs▁begin｜>"
        "<｜tool▁output▁begin｜>sunny<｜tool▁output▁end｜>\n<｜tool▁output▁begin｜>rain<｜tool▁output▁end｜>"
        "<｜tool▁outputs▁end｜>Both.<｜end▁of▁sentence｜>",
        "");
    expect_prompt(
        v31, &conversation,
        "<｜begin▁of▁sentence｜><｜User｜>Weather?<｜Assistant｜></"
        "think><｜tool▁calls▁begin｜><｜tool▁call▁begin｜>f"
        "<｜tool▁sep｜>{\"a\": 1}<｜tool▁call▁end｜><｜tool▁call▁begin｜>g<｜tool▁sep｜>{}<｜tool▁call▁end｜>"
        "<｜tool▁calls▁end｜><｜end▁of▁sentence｜><｜tool▁output▁begin｜>sunny<｜tool▁output▁end｜>"
        "<｜tool▁output▁begin｜>rain<｜tool▁output▁end｜>Both.<｜end▁of▁sentence｜>",
        "");
    conversation.message_count = 5; // the assistant's turn goes on behind results, without a token of its own
    conversation.no_reply = false;
    struct nib_pieces pieces = {0};
    assert_int_equal(nib_chat_render(r1, &conversation, &pieces, NULL), NIB_OK);
    assert_int_equal(pieces.reply_from, pieces.count);
    nib_pieces_free(&pieces);
}

static void tools_are_told(void **state)
{
    (void)state;
    const struct nib_tool tool = {.name = nib_text_of("weather"),
                                  .description = nib_text_of("How it is."),
                                  .parameters = nib_text_of("{\"type\":\"object\"}")};
    struct nib_conversation conversation = {.tools = &tool, .tool_count = 1};
    expect_prompt(
        v31, &conversation,
        "<｜begin▁of▁sentence｜>## Tools\nYou have access to the following tools:\n\n### weather\nDescription: "
        "How it is.\n\nParameters: {\"type\": \"object\"}\n\nIMPORTANT: ALWAYS adhere to this exact format for "
        "tool use:\n<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>tool_call_name<｜tool▁sep｜>tool_call_arguments"
        "<｜tool▁call▁end｜>{additional_tool_calls}<｜tool▁calls▁end｜>\n\nWhere:\n- `tool_call_name` must be an "
        "exact match to one of the available tools\n- `tool_call_arguments` must be valid JSON that strictly "
        "follows the tool's Parameters Schema\n- For multiple tool calls, chain them directly without "
        "separators or spaces<｜Assistant｜></think>",
        "</think>");
}

static void replies(void **state)
{
    (void)state;
    const enum nib_role a = NIB_ROLE_ASSISTANT;
    const struct expected_message thought[] = {{a, "analysis", "", "Hm.", NIB_END_MESSAGE, ""},
                                               {a, "final", "", "Yes.", NIB_END_TURN, ""}};
    expect_messages(r1, NULL, 0, NIB_CHAT_FROM_REPLY, "<think>\nHm.\n</think>\n\nYes.<｜end▁of▁sentence｜>",
                    thought, 2);
    expect_messages(v31, NULL, 0, NIB_CHAT_FROM_REPLY, "</think>Yes.<｜end▁of▁sentence｜>", thought + 1, 1);
    const struct expected_message calls[] = {
        {a, "final", "", "Look.", NIB_END_MESSAGE, ""},
        {a, "commentary", "functions.f", "{\"a\": \"```\"}", NIB_END_CALL, ""},
        {a, "commentary", "functions.g", "{}", NIB_END_CALL, ""}};
    expect_messages(
        v3, NULL, 0, NIB_CHAT_FROM_REPLY,
        "Look.<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>f\n```json\n{\"a\": \"```\"}\n"
        "```<｜tool▁call▁end｜>\n<｜tool▁call▁begin｜>function<｜tool▁sep｜>g\n```json\n{}\n```"
        "<｜tool▁call▁end｜><｜tool▁calls▁end｜><｜end▁of▁sentence｜>",
        calls, 3);
    expect_messages(
        v31, NULL, 0, NIB_CHAT_FROM_REPLY,
        "Look.<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>f<｜tool▁sep｜>{\"a\": \"```\"}<｜tool▁call▁end｜>"
        "<｜tool▁call▁begin｜>g<｜tool▁sep｜>{}<｜tool▁call▁end｜><｜tool▁calls▁end｜><｜end▁of▁sentence｜>",
        calls, 3);
    const char *odd = "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>what<｜tool▁call▁end｜>";
    expect_messages(v3, NULL, 0, NIB_CHAT_FROM_REPLY, odd,
                    &(struct expected_message){a, "final", "", odd, NIB_END_MESSAGE, ""}, 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(prompts),
        cmocka_unit_test(calls_and_results),
        cmocka_unit_test(tools_are_told),
        cmocka_unit_test(replies),
    };
    return cmocka_run_group_tests_name("deepseek", tests, open_chats, close_chats);
}
