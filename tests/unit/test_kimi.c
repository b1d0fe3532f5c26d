// Kimi-K2: prompts as its chat template writes them (derived by hand), and its replies.
#include "support/turn_expect.h"

static struct turn_vocabulary thinking, plain = {.absent = {"<think>", "</think>"}};
static struct nib_chat *chat,
    *instruct; // K2-Thinking's vocabulary, and that of K2-Instruct, which has no thoughts

static int open_chats(void **state)
{
    (void)state;
    chat = open_turns(&thinking, "kimi");
    instruct = open_turns(&plain, "kimi");
    return 0;
}

static int close_chats(void **state)
{
    (void)state;
    nib_chat_close(chat);
    nib_chat_close(instruct);
    return 0;
}

static struct nib_message with_id(struct nib_message message, const char *id)
{
    message.id = nib_text_of(id);
    return message;
}

#define SYSTEM "<|im_system|>system<|im_middle|>You are Kimi, an AI assistant created by Moonshot AI.<|im_end|>"

static void prompts_are_as_kimi_reads_them(void **state)
{
    (void)state;
    const struct nib_message messages[] = {
        nib_message_user(nib_text_of("Hi")),
        nib_message_reasoning(nib_text_of("A greeting.")),
        nib_message_answer(nib_text_of("Hello!")),
        nib_message_user(nib_text_of("Weather?")),
        nib_message_reasoning(nib_text_of("Ask.")),
        nib_message_answer(nib_text_of("Let me see.")),
        with_id(nib_message_call(nib_text_of("functions.weather"), nib_text_of("{\"city\": \"Rome\"}")),
                "functions.weather:7"),
        with_id(nib_message_result(nib_text_of("functions.weather"), nib_text_of("sunny")), "functions.weather:7"),
    };
    struct nib_message told[8];
    memcpy(told, messages, sizeof told);
    told[5].channel = nib_text_of("commentary"); // what stands before a call is no answer
    struct nib_conversation conversation = {.messages = told, .message_count = 8};
    expect_prompt(chat, &conversation,
                  SYSTEM
                  "<|im_user|>user<|im_middle|>Hi<|im_end|>"
                  "<|im_assistant|>assistant<|im_middle|><think></think>Hello!<|im_end|>"
                  "<|im_user|>user<|im_middle|>Weather?<|im_end|>"
                  "<|im_assistant|>assistant<|im_middle|><think>Ask.</think>Let me see."
                  "<|tool_calls_section_begin|><|tool_call_begin|>functions.weather:7<|tool_call_argument_begin|>"
                  "{\"city\": \"Rome\"}<|tool_call_end|><|tool_calls_section_end|><|im_end|>"
                  "<|im_system|>tool<|im_middle|>## Return of functions.weather:7\nsunny<|im_end|>"
                  "<|im_assistant|>assistant<|im_middle|><think>",
                  "<think>");
    conversation.message_count = 3;
    conversation.effort = NIB_EFFORT_NONE;
    expect_prompt(chat, &conversation,
                  SYSTEM "<|im_user|>user<|im_middle|>Hi<|im_end|>"
                         "<|im_assistant|>assistant<|im_middle|><think></think>Hello!<|im_end|>"
                         "<|im_assistant|>assistant<|im_middle|><think></think>",
                  "<think></think>");
    conversation.instructions = nib_text_of("Be brief.");
    expect_prompt(instruct, &conversation,
                  "<|im_system|>system<|im_middle|>Be brief.<|im_end|><|im_user|>user<|im_middle|>Hi<|im_end|>"
                  "<|im_assistant|>assistant<|im_middle|>Hello!<|im_end|><|im_assistant|>assistant<|im_middle|>",
                  "");
}

static void tools_are_compact_and_sorted(void **state)
{
    (void)state;
    const struct nib_tool tools[] = {
        {.name = nib_text_of("weather"),
         .description = nib_text_of("How it is."),
         .parameters = nib_text_of("{\"type\": \"object\", \"properties\": {\"b\": {}, \"a\": {}}}")},
        {.name = nib_text_of("time")}};
    struct nib_conversation conversation = {
        .tools = tools, .tool_count = 2, .instructions = nib_text_of("x"), .no_reply = true};
    expect_prompt(chat, &conversation,
                  "<|im_system|>tool_declare<|im_middle|>[{\"function\":{\"description\":\"How it is.\",\"name\":"
                  "\"weather\",\"parameters\":{\"properties\":{\"a\":{},\"b\":{}},\"type\":\"object\"}},\"type\":"
                  "\"function\"},{\"function\":{\"name\":\"time\"},\"type\":\"function\"}]<|im_end|>"
                  "<|im_system|>system<|im_middle|>x<|im_end|>",
                  "");
}

// Clients that make ids of their own get them numbered; results follow their calls.
static void other_ids_are_numbered(void **state)
{
    (void)state;
    const struct nib_message messages[] = {
        with_id(nib_message_call(nib_text_of("functions.f"), nib_text_of("{}")), "call_1"),
        with_id(nib_message_call(nib_text_of("functions.g"), nib_text_of("{}")), "functions.g:x"),
        nib_message_call(nib_text_of("functions.f"), nib_text_of("{}")),
        with_id(nib_message_result(nib_text_of("functions.g"), nib_text_of("2")), "functions.g:x"),
        with_id(nib_message_result(nib_text_of("functions.f"), nib_text_of("1")), "call_1"),
        nib_message_result(nib_text_of("functions.f"), nib_text_of("3")),
        with_id(nib_message_result(nib_text_of("functions.f"), nib_text_of("4")), "nowhere"),
    };
    struct nib_conversation conversation = {
        .messages = messages, .message_count = 7, .instructions = nib_text_of("x"), .no_reply = true};
    expect_prompt(instruct, &conversation,
                  "<|im_system|>system<|im_middle|>x<|im_end|><|im_assistant|>assistant<|im_middle|>"
                  "<|tool_calls_section_begin|>"
                  "<|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>{}<|tool_call_end|>"
                  "<|tool_call_begin|>functions.g:1<|tool_call_argument_begin|>{}<|tool_call_end|>"
                  "<|tool_call_begin|>functions.f:2<|tool_call_argument_begin|>{}<|tool_call_end|>"
                  "<|tool_calls_section_end|><|im_end|>"
                  "<|im_system|>tool<|im_middle|>## Return of functions.g:1\n2<|im_end|>"
                  "<|im_system|>tool<|im_middle|>## Return of functions.f:0\n1<|im_end|>"
                  "<|im_system|>tool<|im_middle|>## Return of functions.f:2\n3<|im_end|>"
                  "<|im_system|>tool<|im_middle|>## Return of nowhere\n4<|im_end|>",
                  "");
    const struct nib_message call = nib_message_call(nib_text_of("functions.h"), (struct nib_text){0});
    conversation.no_reply = false;
    conversation.reply = &call;
    struct nib_pieces pieces = {0};
    assert_int_equal(nib_chat_render(instruct, &conversation, &pieces, NULL), NIB_OK);
    char *reply = spell_pieces(instruct, &pieces, pieces.reply_from);
    assert_string_equal(
        reply, "<|tool_calls_section_begin|><|tool_call_begin|>functions.h:3<|tool_call_argument_begin|>");
    free(reply);
    nib_pieces_free(&pieces);
}

static void replies(void **state)
{
    (void)state;
    const enum nib_role a = NIB_ROLE_ASSISTANT;
    const struct expected_message expected[] = {
        {a, "analysis", "", "Two.", NIB_END_MESSAGE, ""},
        {a, "final", "", "Look.", NIB_END_MESSAGE, ""},
        {a, "commentary", "functions.f", "{\"a\": 1}", NIB_END_CALL, "functions.f:0"},
        {a, "commentary", "functions.a.b", "{", NIB_END_CALL, "functions.a.b:12"}};
    expect_messages(chat, NULL, 0, NIB_CHAT_FROM_REPLY,
                    "<think>Two.</think>Look.\n<|tool_calls_section_begin|><|tool_call_begin|>functions.f:0"
                    "<|tool_call_argument_begin|>{\"a\": 1}<|tool_call_end|><|tool_call_begin|> functions.a.b:12\n"
                    "<|tool_call_argument_begin|>{<|tool_call_end|><|tool_calls_section_end|><|im_end|>",
                    expected, 4);
    // A section ends a thought, and calls may come without one; an id of another form is the name.
    const struct expected_message odd[] = {{a, "analysis", "", "Two.", NIB_END_MESSAGE, ""},
                                           {a, "commentary", "functions.f", "{}", NIB_END_CALL, "functions.f:0"},
                                           {a, "commentary", "functions.weather", "[", NIB_END_TURN, ""}};
    expect_messages(chat, NULL, 0, NIB_CHAT_FROM_REPLY,
                    "<think>Two.\n<|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>{}<|tool_call_end|>"
                    "<|tool_call_begin|>weather<|tool_call_argument_begin|>[<|im_end|>",
                    odd, 3);
    // Ids of other forms, which models write behind a history with such ids.
    const struct expected_message others[] = {{a, "commentary", "functions.f_2", "{}", NIB_END_CALL, ""},
                                              {a, "commentary", "functions.f", "{}", NIB_END_CALL, ""},
                                              {a, "commentary", "functions.:7", "{}", NIB_END_CALL, ""}};
    expect_messages(chat, NULL, 0, NIB_CHAT_FROM_REPLY,
                    "<|tool_call_begin|>f_2:10<|tool_call_argument_begin|>{}<|tool_call_end|>"
                    "<|tool_call_begin|> f <|tool_call_argument_begin|>{}<|tool_call_end|>"
                    "<|tool_call_begin|>:7<|tool_call_argument_begin|>{}<|tool_call_end|>",
                    others, 3);
    expect_messages(chat, NULL, 0, NIB_CHAT_FROM_REPLY, "<|tool_call_begin|>functions.f:0",
                    &(struct expected_message){a, "final", "", "functions.f:0", NIB_END_TRUNCATED, ""}, 1);
    const struct expected_message turns[] = {{NIB_ROLE_SYSTEM, "", "", "x", NIB_END_TURN, ""},
                                             {NIB_ROLE_USER, "", "", "Hi", NIB_END_TURN, ""},
                                             {NIB_ROLE_TOOL, "", "", "y", NIB_END_TURN, ""},
                                             {a, "final", "", "Ho", NIB_END_TURN, ""}};
    expect_messages(chat, NULL, 0, NIB_CHAT_FROM_START,
                    "<|im_system|>system<|im_middle|>x<|im_end|><|im_user|>user<|im_middle|>Hi<|im_end|>"
                    "<|im_system|>tool<|im_middle|>y<|im_end|><|im_assistant|>assistant<|im_middle|>Ho<|im_end|>",
                    turns, 4);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(prompts_are_as_kimi_reads_them),
        cmocka_unit_test(tools_are_compact_and_sorted),
        cmocka_unit_test(other_ids_are_numbered),
        cmocka_unit_test(replies),
    };
    return cmocka_run_group_tests_name("kimi", tests, open_chats, close_chats);
}
