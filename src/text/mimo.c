// MiMo-V2: ChatML without line breaks between turns, every turn of the assistant with its <think>, and calls as mark-up.
// After the chat template that Xiaomi publishes with the models.
#include "base/error.h"
#include "text/chat_turns.h"
#include "text/tool_markup.h"

enum { IM_START, IM_END, END_OF_TEXT, THINK, THOUGHT, CALL, CALL_END, RESPONSE, RESPONSE_END };

// The template writes scalars as Python does.
static const struct nib_tool_markup markup = {.call = "<function=",
                                              .call_end = "</function>",
                                              .argument = "<parameter=",
                                              .argument_end = "</parameter>",
                                              .before_name = "",
                                              .behind_name = ">",
                                              .null = "None",
                                              .yes = "True",
                                              .no = "False"};

// ---- tools

static void write_element(struct nib_writer *out, const char *name, const json_t *value)
{
    nib_write_string(out, "\n<");
    nib_write_string(out, name);
    nib_write_string(out, ">");
    if (json_is_string(value))
        nib_write(out, json_string_value(value), json_string_length(value));
    else if (json_is_boolean(value) || json_is_null(value))
        nib_write_string(out, json_is_true(value) ? markup.yes : json_is_null(value) ? markup.null : markup.no);
    else
        nib_write_json(out, value, 0);
    nib_write_string(out, "</");
    nib_write_string(out, name);
    nib_write_string(out, ">");
}

// The members of an object but those named.
static void write_others(struct nib_writer *out, const json_t *object, const char *const *but /* NULL ends it */)
{
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)object, key, value)
    {
        bool named = false;
        for (const char *const *name = but; *name; name++)
            named |= strcmp(*name, key) == 0;
        if (!named)
            write_element(out, key, value);
    }
}

static void write_if(struct nib_writer *out, const json_t *object, const char *name)
{
    const json_t *value = json_object_get(object, name);
    if (value)
        write_element(out, name, value);
}

static void write_function(struct nib_writer *out, const json_t *function)
{
    static const char *const of_parameter[] = {"name", "type", "description", NULL}, *const of_parameters[] = {
                                                                                         "type", "properties",
                                                                                         NULL};
    const json_t *parameters = json_object_get(function, "parameters");
    const char *name;
    json_t *parameter;
    nib_write_string(out, "\n<function>");
    write_if(out, function, "name");
    write_if(out, function, "description");
    nib_write_string(out, "\n<parameters>");
    json_object_foreach(json_object_get(parameters, "properties"), name, parameter)
    {
        nib_write_string(out, "\n<parameter>\n<name>");
        nib_write_string(out, name);
        nib_write_string(out, "</name>");
        write_if(out, parameter, "type");
        write_if(out, parameter, "description");
        write_others(out, parameter, of_parameter);
        nib_write_string(out, "\n</parameter>");
    }
    write_others(out, parameters, of_parameters);
    nib_write_string(out, "\n</parameters>\n</function>");
}

static nib_status write_system(struct nib_writer *out, const struct nib_conversation *conversation,
                               struct nib_error *err)
{
    nib_turns_write_instructions(out, conversation, "You are MiMo, a helpful AI assistant engineered by Xiaomi.");
    if (conversation->tool_count == 0)
        return NIB_OK;
    nib_write_string(out,
                     "\n\n# Tools\n\nYou may call one or more functions to assist with the user query.\n\nYou "
                     "have access to the following functions:\n\n<tools>");
    nib_status status = nib_turns_write_tools(out, conversation, write_function, err);
    nib_write_string(out, "\n</tools>\n\n");
    return status;
}

static const char how_to_call[] =
    "For each function call, output the function name and arguments in the following format:\n"
    "<tool_call>\n"
    "<function=example_function_name>\n"
    "<parameter=example_parameter_1>value_1</parameter>\n"
    "<parameter=example_parameter_2>This is the value for the second parameter\n"
    "that can span\n"
    "multiple lines</parameter>\n"
    "</function>\n"
    "</tool_call>\n\n"
    "<IMPORTANT>\n"
    "- Function calls MUST follow the specified format: an inner <function=...></function> block must be nested "
    "within <tool_call></tool_call> XML tags\n"
    "- DO NOT use function calls inside <think></think> tags.\n"
    "- The value enclosed between parameter tags is preserved exactly as-is, including newlines and spaces.\n"
    "</IMPORTANT>";

static nib_status put_system(const struct nib_chat *chat, const struct nib_conversation *conversation,
                             struct nib_pieces *pieces, struct nib_error *err)
{
    return nib_turns_put_system(chat, conversation, write_system, "<|im_start|>system\n", how_to_call,
                                "<|im_end|>", pieces, err);
}

// ---- turns

static bool put_call_head(const struct nib_chat *chat, const struct nib_message *call, struct nib_pieces *pieces)
{
    return nib_pieces_put_words(pieces, chat, "<tool_call>\n<function=") &&
           nib_pieces_put_borrowed(pieces, nib_function_of(call->recipient)) &&
           nib_pieces_put_words(pieces, chat, ">\n");
}

static bool put_call(const struct nib_chat *chat, const struct nib_message *call, struct nib_pieces *pieces)
{
    struct nib_writer arguments = {0};
    nib_markup_write_arguments(&arguments, &markup, call->text);
    bool fine = put_call_head(chat, call, pieces);
    fine = nib_pieces_put_written(pieces, &arguments) && fine;
    return fine && nib_pieces_put_words(pieces, chat, "</function>\n</tool_call>");
}

static bool put_assistant(const struct nib_chat *chat, const struct nib_turn *turn, size_t reasons_from,
                          struct nib_pieces *pieces)
{
    bool fine = nib_pieces_put_words(pieces, chat, "<|im_start|>assistant\n<think>") &&
                nib_turn_put_reasoning(pieces, turn, reasons_from) &&
                nib_pieces_put_words(pieces, chat, "</think>");
    for (size_t i = 0; fine && i < turn->count; i++) {
        const struct nib_message *message = &turn->messages[i];
        if (nib_is_call(message))
            fine = put_call(chat, message, pieces);
        else if (!nib_is_reasoning(message))
            fine = nib_pieces_put_borrowed(pieces, message->text);
    }
    return fine && nib_pieces_put_words(pieces, chat, "<|im_end|>");
}

static bool put_turn(const struct nib_chat *chat, const struct nib_conversation *conversation,
                     const struct nib_turn *turn, size_t reasons_from, struct nib_pieces *pieces)
{
    static const struct nib_turn_words words[] = {
        [NIB_ROLE_SYSTEM] = {"<|im_start|>system\n", "", "", "<|im_end|>"},
        [NIB_ROLE_DEVELOPER] = {"<|im_start|>system\n", "", "", "<|im_end|>"},
        [NIB_ROLE_USER] = {"<|im_start|>user\n", "", "", "<|im_end|>"},
        [NIB_ROLE_TOOL] = {"<|im_start|>tool\n", "<tool_response>\n", "\n</tool_response>\n", "<|im_end|>"},
    };
    (void)conversation;
    if (turn->role == NIB_ROLE_ASSISTANT)
        return put_assistant(chat, turn, reasons_from, pieces);
    return nib_turn_put_between(chat, turn, &words[turn->role], pieces);
}

static nib_status put_reply(const struct nib_chat *chat, const struct nib_conversation *conversation,
                            struct nib_pieces *pieces, struct nib_error *err)
{
    const struct nib_message *reply = conversation->reply;
    bool fine = nib_pieces_put_words(pieces, chat, "<|im_start|>assistant\n");
    pieces->reply_from = pieces->count;
    if (fine && (conversation->effort == NIB_EFFORT_NONE || (reply && !nib_is_reasoning(reply))))
        fine = nib_pieces_put_words(pieces, chat, "<think></think>");
    if (fine && reply)
        fine = (!nib_is_call(reply) || put_call_head(chat, reply, pieces)) &&
               nib_pieces_put_borrowed(pieces, reply->text);
    return fine ? NIB_OK : nib_turns_out_of_memory(chat, err);
}

// ---- parsing

static bool read_calls(struct nib_chat_parser *parser)
{
    return nib_turn_put_markup(parser, &markup);
}

static bool in_argument(struct nib_text header)
{
    return nib_markup_in_argument(&markup, header);
}

static const struct nib_turn_grammar grammar = {
    .head = NIB_HEAD_LINE,
    .read_calls = read_calls,
    .in_argument = in_argument,
    .put_system = put_system,
    .put_turn = put_turn,
    .put_reply = put_reply,
    .behind_thought = "",
    .put_call_head = put_call_head,
    .markup = &markup,
};

const struct nib_chat_format nib_chat_mimo = {
    .name = "mimo",
    .models = "mimo_v2",
    .turns = &grammar,
    .controls =
        {
            [IM_START] = {"<|im_start|>", .required = true, .sign = NIB_SIGN_TURN},
            [IM_END] = {"<|im_end|>", .required = true, .stops = true, .sign = NIB_SIGN_TURN_END},
            [END_OF_TEXT] = {"<|endoftext|>", .stops = true, .sign = NIB_SIGN_TEXT_END},
            [THINK] = {"<think>", .sign = NIB_SIGN_THINK},
            [THOUGHT] = {"</think>", .sign = NIB_SIGN_THOUGHT},
            [CALL] = {"<tool_call>", .sign = NIB_SIGN_CALL},
            [CALL_END] = {"</tool_call>", .sign = NIB_SIGN_CALL_END},
            [RESPONSE] = {.spelling = "<tool_response>"},
            [RESPONSE_END] = {.spelling = "</tool_response>"},
        },
    .render = nib_turns_render,
    .render_exact = nib_turns_render_exact,
    .frame = nib_turns_frame,
    .begin = nib_turns_begin,
    .push = nib_turns_push,
    .finish = nib_turns_finish,
};
