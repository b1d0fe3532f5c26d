// /tokenize and /detokenize: what a text or a chat is in tokens, and back.
#include "server/chat_request.h"
#include "server/date.h"
#include "server/generation.h"

// {"prompt": TEXT} as it is, control tokens counting unless "add_special_tokens" is false; or {"messages": […]} and what
// else a chat request has.
static bool tokenize(struct nib_server *server, const struct nib_fields *fields, struct nib_token_list *tokens)
{
    static const char *const known[] = {"prompt",
                                        "messages",
                                        "tools",
                                        "tool_choice",
                                        "parallel_tool_calls",
                                        "reasoning_effort",
                                        "response_format",
                                        "model",
                                        "add_special_tokens",
                                        "chat_template_kwargs",
                                        NULL};
    struct nib_text prompt = {0};
    struct nib_error err;
    bool special = true;
    if (!nib_fields_only(fields, known, NULL) || !nib_field_bool(fields, "add_special_tokens", &special) ||
        !nib_field_text(fields, "prompt", &prompt))
        return false;
    if (nib_field(fields, "prompt") || !server->chat) {
        if (!nib_field_require(fields, "prompt"))
            return false;
        nib_status status = nib_tokenizer_encode(server->tokenizer, prompt.bytes, prompt.size,
                                                 special ? NIB_ENCODE_SPECIAL : NIB_ENCODE_PLAIN, tokens, &err);
        return !status || nib_api_fail_status(fields->error, "prompt", &err);
    }
    struct nib_chat_request request = {0};
    struct nib_date date = nib_prompt_date(server);
    size_t preset;
    bool read = nib_read_effort(&request, fields, "reasoning_effort") && nib_read_thinking(&request, fields) &&
                nib_read_tools(&request, fields, false) &&
                nib_read_format(&request, fields, "response_format", false) &&
                nib_read_messages(&request, fields) &&
                nib_chat_request_check_effort(&request, server->chat, fields->error);
    if (read &&
        nib_chat_request_encode(&request, server->chat, server->tokenizer, date.text, NULL, tokens, &preset, &err))
        read = nib_api_fail_status(fields->error, "messages", &err);
    nib_chat_request_free(&request);
    return read;
}

void nib_serve_tokenize(struct nib_server *server, struct nib_exchange *exchange, struct nib_text body)
{
    struct nib_api_error error;
    struct nib_fields fields;
    struct nib_token_list tokens = {0};
    json_t *json = nib_parse_body(body, &error);
    if (json && nib_fields_open(&fields, json, &error, "%s", "") && tokenize(server, &fields, &tokens)) {
        json_t *ids = json_array();
        for (size_t i = 0; i < tokens.count; i++)
            json_array_append_new(ids, json_integer(tokens.ids[i]));
        nib_exchange_answer(exchange, 200,
                            json_pack("{s:I, s:i, s:o}", "count", (json_int_t)tokens.count, "max_model_len",
                                      (int)server->backend.context, "tokens", ids));
    } else {
        nib_exchange_fail(exchange, &error);
    }
    nib_token_list_free(&tokens);
    json_decref(json);
}

static bool detokenize(const struct nib_server *server, const struct nib_fields *fields, struct nib_bytes *text)
{
    static const char *const known[] = {"tokens", "model", NULL};
    const json_t *tokens = NULL, *item;
    struct nib_error err;
    size_t i;
    if (!nib_fields_only(fields, known, NULL) || !nib_field_require(fields, "tokens") ||
        !nib_field_array(fields, "tokens", 1 << 24, &tokens))
        return false;
    json_array_foreach((json_t *)tokens, i, item)
    {
        json_int_t wide = json_is_integer(item) ? json_integer_value(item) : -1;
        int32_t id = wide >= 0 && wide <= INT32_MAX ? (int32_t)wide : -1;
        if (nib_tokenizer_decode(server->tokenizer, &id, 1, text, &err))
            return nib_field_fail(fields, "tokens", "invalid_value", "'tokens[%zu]' is no token id.", i);
    }
    return true;
}

void nib_serve_detokenize(struct nib_server *server, struct nib_exchange *exchange, struct nib_text body)
{
    struct nib_api_error error;
    struct nib_fields fields;
    struct nib_bytes text = {0};
    json_t *json = nib_parse_body(body, &error);
    if (json && nib_fields_open(&fields, json, &error, "%s", "") && detokenize(server, &fields, &text))
        nib_exchange_answer(exchange, 200,
                            json_pack("{s:o}", "prompt", nib_text_json((struct nib_text){text.data, text.size})));
    else
        nib_exchange_fail(exchange, &error);
    nib_bytes_free(&text);
    json_decref(json);
}
