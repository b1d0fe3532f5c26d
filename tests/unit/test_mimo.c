// MiMo: prompts as its chat template writes them (derived by hand), and its replies.
#include "support/turn_expect.h"

static struct turn_vocabulary vocabulary;
static struct nib_chat *chat;

static int open_chat(void **state)
{
    (void)state;
    chat = open_turns(&vocabulary, "mimo");
    return 0;
}

static int close_chat(void **state)
{
    (void)state;
    nib_chat_close(chat);
    return 0;
}

static void prompts_are_as_mimo_reads_them(void **state)
{
    (void)state;
    const struct nib_message messages[] = {
        nib_message_user(nib_text_of("Hi")),
        nib_message_reasoning(nib_text_of("A greeting.")),
        nib_message_answer(nib_text_of("Hello!")),
        nib_message_user(nib_text_of("Go on")),
        nib_message_call(
            nib_text_of("functions.f"),
            nib_text_of("{\"city\": \"Rome\", \"n\": 1, \"deep\": {\"a\": [1, true]}, \"yes\": true}")),
        nib_message_call(nib_text_of("functions.g"), nib_text_of("{}")),
        nib_message_result(nib_text_of("functions.f"), nib_text_of("sunny")),
        nib_message_result(nib_text_of("functions.g"), nib_text_of("rain")),
    };
    struct nib_conversation conversation = {.messages = messages, .message_count = 8};
    expect_prompt(
        chat, &conversation,
        "<|im_start|>system\nYou are MiMo, a helpful AI assistant engineered by Xiaomi.<|im_end|>"
        "<|im_start|>user\nHi<|im_end|>"
        "<|im_start|>assistant\n<think>A greeting.</think>Hello!<|im_end|>"
        "<|im_start|>user\nGo on<|im_end|>"
        "<|im_start|>assistant\n<think></think><tool_call>\n<function=f>\n<parameter=city>Rome</parameter>\n"
        "<parameter=n>1</parameter>\n<parameter=deep>{\"a\": [1, true]}</parameter>\n"
        "<parameter=yes>True</parameter>\n</function>\n</tool_call><tool_call>\n<function=g>\n</function>\n"
        "</tool_call><|im_end|>"
        "<|im_start|>tool\n<tool_response>\nsunny\n</tool_response>\n<tool_response>\nrain\n"
        "</tool_response>\n<|im_end|>"
        "<|im_start|>assistant\n",
        "");
    conversation = (struct nib_conversation){.instructions = nib_text_of("Be brief."), .effort = NIB_EFFORT_NONE};
    expect_prompt(chat, &conversation,
                  "<|im_start|>system\nBe brief.<|im_end|><|im_start|>assistant\n<think></think>",
                  "<think></think>");
}

static void tools_are_told(void **state)
{
    (void)state;
    const struct nib_tool tool = {
        .name = nib_text_of("weather"),
        .description = nib_text_of("Says how it is."),
        .parameters = nib_text_of("{\"type\": \"object\", \"properties\": {\"city\": {\"type\": \"string\", "
                                  "\"description\": \"Where\", \"enum\": [\"Rome\", \"Oslo\"]}}, \"required\": "
                                  "[\"city\"], \"additionalProperties\": false}")};
    struct nib_conversation conversation = {.tools = &tool, .tool_count = 1, .no_reply = true};
    struct nib_pieces pieces = {0};
    assert_int_equal(nib_chat_render(chat, &conversation, &pieces, NULL), NIB_OK);
    char *text = spell_pieces(chat, &pieces, 0);
    assert_non_null(strstr(
        text, "<tools>\n<function>\n<name>weather</name>\n<description>Says how it is.</description>\n"
              "<parameters>\n<parameter>\n<name>city</name>\n<type>string</type>\n<description>Where"
              "</description>\n<enum>[\"Rome\", \"Oslo\"]</enum>\n</parameter>\n<required>[\"city\"]</required>"
              "\n<additionalProperties>False</additionalProperties>\n</parameters>\n</function>\n</tools>\n\nFor "
              "each function call"));
    // The tags in the explanation are tokens, as a tokenizer would make of the template's text.
    for (size_t i = 0; i < pieces.count; i++)
        assert_null(pieces.items[i].text.size
                        ? memmem(pieces.items[i].text.bytes, pieces.items[i].text.size, "<tool_call>", 11)
                        : NULL);
    free(text);
    nib_pieces_free(&pieces);
}

static void replies_are_typed_by_the_tool(void **state)
{
    (void)state;
    static const struct nib_tool tool = {
        .name = {"f", 1},
        .parameters = {
            "{\"properties\": {\"i\": {\"type\": \"integer\"}, \"x\": {\"type\": \"number\"}, \"b\": {\"type\": "
            "\"boolean\"}, \"a\": {\"type\": \"array\"}, \"u\": {\"type\": [\"integer\", \"null\"]}, \"o\": "
            "{\"anyOf\": [{\"type\": \"object\"}, {\"type\": \"string\"}]}, \"e\": {\"enum\": [1, 2]}, \"t\": "
            "{}}}",
            0}};
    struct nib_tool sized = tool;
    sized.parameters.size = strlen(tool.parameters.bytes);
    const enum nib_role a = NIB_ROLE_ASSISTANT;
    const struct {
        const char *arguments, *expected;
    } cases[] = {
        {"<parameter=i>7</parameter>", "{\"i\": 7}"},
        {"<parameter=i>7.5</parameter>", "{\"i\": \"7.5\"}"},
        {"<parameter=i>12345678901234567890</parameter>", "{\"i\": 12345678901234567890}"},
        {"<parameter=a>[-12345678901234567890]</parameter>", "{\"a\": [-12345678901234567890]}"},
        {"<parameter=x>-12345678901234567890</parameter>", "{\"x\": -12345678901234567890}"},
        {"<parameter=x>0.1</parameter><parameter=b>True</parameter>", "{\"x\": 0.1, \"b\": true}"},
        {"<parameter=a>[1, \"x\"]</parameter>", "{\"a\": [1, \"x\"]}"},
        {"<parameter=a>[1, </parameter>", "{\"a\": \"[1, \"}"},
        {"<parameter=u>null</parameter>", "{\"u\": null}"},
        {"<parameter=o>{\"k\": 1}</parameter>", "{\"o\": {\"k\": 1}}"},
        {"<parameter=o>12</parameter>", "{\"o\": \"12\"}"},
        {"<parameter=e>2</parameter>\n<parameter=t>3</parameter>", "{\"e\": 2, \"t\": 3}"},
        {"<parameter=other>null</parameter>", "{\"other\": \"null\"}"},
        {"<parameter=other>\n  two\n lines\n</parameter>", "{\"other\": \"  two\\n lines\"}"},
        {"<parameter=other>a</parameter> b</parameter>", "{\"other\": \"a</parameter> b\"}"},
        {"", "{}"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char stream[400];
        snprintf(stream, sizeof stream, "<tool_call>\n<function=f>\n%s\n</function>\n</tool_call><|im_end|>",
                 cases[i].arguments);
        expect_messages(
            chat, &sized, 1, NIB_CHAT_FROM_REPLY, stream,
            &(struct expected_message){a, "commentary", "functions.f", cases[i].expected, NIB_END_CALL, ""}, 1);
    }
}

// A recursive model's schema is a reference, and additional arguments may have one of their own.
static void types_of_arguments_are_found(void **state)
{
    (void)state;
    static const char *const schemas[] = {
        "{\"$ref\": \"#/o\", \"o\": {\"properties\": {\"i\": {\"type\": \"integer\"}}}}",
        "{\"type\": \"object\", \"additionalProperties\": {\"type\": \"integer\"}}",
        "{\"allOf\": [{\"$ref\": \"#/o\"}], \"o\": {\"additionalProperties\": {\"const\": 7}}}",
        "{\"$ref\": \"#\"}"};
    for (size_t i = 0; i < sizeof schemas / sizeof *schemas; i++) {
        const struct nib_tool tool = {.name = nib_text_of("f"), .parameters = nib_text_of(schemas[i])};
        expect_messages(chat, &tool, 1, NIB_CHAT_FROM_REPLY,
                        "<tool_call>\n<function=f>\n<parameter=i>7</parameter>\n</function>\n</tool_call>",
                        &(struct expected_message){NIB_ROLE_ASSISTANT, "commentary", "functions.f",
                                                   i < 3 ? "{\"i\": 7}" : "{\"i\": \"7\"}", NIB_END_CALL, ""},
                        1);
    }
}

static void replies(void **state)
{
    (void)state;
    const enum nib_role a = NIB_ROLE_ASSISTANT;
    const struct expected_message thought[] = {
        {a, "analysis", "", "Hm.", NIB_END_MESSAGE, ""},
        {a, "final", "", "Yes.", NIB_END_MESSAGE, ""},
        {a, "commentary", "functions.f", "{\"a\": \"1\"}", NIB_END_CALL, ""},
        {a, "commentary", "functions.f", "{}", NIB_END_CALL, ""}};
    expect_messages(chat, NULL, 0, NIB_CHAT_FROM_REPLY,
                    "<think>Hm.</think>Yes.<tool_call>\n<function=f>\n<parameter=a>1</parameter>\n</function>\n"
                    "</tool_call><tool_call><function=f></function></tool_call><|im_end|>",
                    thought, 4);
    // Tags within an argument are its text.
    expect_messages(chat, NULL, 0, NIB_CHAT_FROM_REPLY,
                    "<tool_call>\n<function=f>\n<parameter=a>Write <tool_call>, then </tool_call>.</parameter>\n"
                    "</function>\n</tool_call><|im_end|>",
                    &(struct expected_message){a, "commentary", "functions.f",
                                               "{\"a\": \"Write <tool_call>, then </tool_call>.\"}", NIB_END_CALL,
                                               ""},
                    1);
    static const char endless[] = "<tool_call>\n<function=f>\n<parameter=a>1\n</tool_call>";
    expect_messages(chat, NULL, 0, NIB_CHAT_FROM_REPLY, endless,
                    &(struct expected_message){a, "final", "", endless, NIB_END_TRUNCATED, ""}, 1);
    static const char *const odd[] = {
        "<tool_call>\n<function=f>\n<parameter=a>1</parameter>\n</tool_call>",
        "<tool_call>\n<function=f>\n<parameter=a>1</parameter>\n<parameter=a>2</parameter></function></tool_call>",
        "<tool_call>\n<function=>\n</function></tool_call>", "<tool_call>{\"name\": \"f\"}</tool_call>",
        "<tool_call></tool_call>"};
    for (size_t i = 0; i < sizeof odd / sizeof *odd; i++)
        expect_messages(chat, NULL, 0, NIB_CHAT_FROM_REPLY, odd[i],
                        &(struct expected_message){a, "final", "", odd[i], NIB_END_MESSAGE, ""}, 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(prompts_are_as_mimo_reads_them),
        cmocka_unit_test(tools_are_told),
        cmocka_unit_test(replies_are_typed_by_the_tool),
        cmocka_unit_test(types_of_arguments_are_found),
        cmocka_unit_test(replies),
    };
    return cmocka_run_group_tests_name("mimo", tests, open_chat, close_chat);
}
