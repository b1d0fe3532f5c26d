// /v1/chat/completions
#include "server/chat_request.h"
#include "server/generation.h"

// ---- writing ----

static json_t *chunk(const struct nib_generation *g, json_t *choices, bool usage)
{
    json_t *json =
        json_pack("{s:s, s:s, s:I, s:s, s:o}", "id", g->id.text, "object", "chat.completion.chunk", "created",
                  (json_int_t)g->created, "model", g->server->options.model_name, "choices", choices);
    if (g->include_usage)
        json_object_set_new(json, "usage", usage ? nib_generation_usage(g) : json_null());
    return json;
}

static json_t *logprobs_json(const struct nib_generation *g, json_t *entries)
{
    if (!g->logprobs)
        return json_null();
    return json_pack("{s:o}", "content", entries ? json_deep_copy(entries) : json_array());
}

// Takes `delta` over.
static void send(struct nib_choice *choice, json_t *delta, json_t *entries, const char *finish_reason)
{
    struct nib_generation *g = choice->generation;
    json_t *logprobs = entries || !g->logprobs ? logprobs_json(g, entries) : json_null();
    json_t *one = json_pack("{s:i, s:o, s:o, s:s?}", "index", choice->index, "delta", delta, "logprobs", logprobs,
                            "finish_reason", finish_reason);
    nib_exchange_send(g->exchange, NULL, chunk(g, json_pack("[o]", one), false));
}

static void stream_begin(struct nib_choice *choice)
{
    send(choice, json_pack("{s:s, s:s}", "role", "assistant", "content", ""), NULL, NULL);
}

static json_t *string(struct nib_text text)
{
    return json_stringn(text.bytes ? text.bytes : "", text.size);
}

static json_t *buffer_string(const struct nib_bytes *buffer)
{
    return string((struct nib_text){buffer->data, buffer->size});
}

static void stream_delta(struct nib_choice *choice, const struct nib_delta *delta)
{
    json_t *call, *text = string(delta->text);
    switch (delta->kind) {
    case NIB_DELTA_REASONING:
        send(choice, json_pack("{s:o}", "reasoning_content", text), NULL, NULL);
        break;
    case NIB_DELTA_CONTENT:
        send(choice, json_pack("{s:o}", "content", text), delta->logprobs, NULL);
        break;
    case NIB_DELTA_CALL:
        call = json_pack("{s:I, s:s, s:s, s:{s:o, s:s}}", "index", (json_int_t)delta->call, "id",
                         choice->calls[delta->call].id.text, "type", "function", "function", "name", text,
                         "arguments", "");
        send(choice, json_pack("{s:[o]}", "tool_calls", call), NULL, NULL);
        break;
    case NIB_DELTA_ARGUMENTS:
        call = json_pack("{s:I, s:{s:o}}", "index", (json_int_t)delta->call, "function", "arguments", text);
        send(choice, json_pack("{s:[o]}", "tool_calls", call), NULL, NULL);
        break;
    }
}

static void stream_end(struct nib_choice *choice)
{
    send(choice, json_object(), NULL, choice->finish_reason);
}

static json_t *message_json(const struct nib_choice *choice)
{
    bool silent = choice->n_calls && !choice->content.size;
    json_t *message = json_pack("{s:s, s:o, s:n}", "role", "assistant", "content",
                                silent ? json_null() : buffer_string(&choice->content), "refusal");
    if (choice->reasoning.size)
        json_object_set_new(message, "reasoning_content", buffer_string(&choice->reasoning));
    if (!choice->n_calls)
        return message;
    json_t *calls = json_array();
    for (size_t i = 0; i < choice->n_calls; i++)
        json_array_append_new(calls,
                              json_pack("{s:s, s:s, s:{s:o, s:o}}", "id", choice->calls[i].id.text, "type",
                                        "function", "function", "name", buffer_string(&choice->calls[i].name),
                                        "arguments", buffer_string(&choice->calls[i].arguments)));
    json_object_set_new(message, "tool_calls", calls);
    return message;
}

static void answer(struct nib_generation *g)
{
    json_t *choices = json_array();
    for (int64_t i = 0; i < g->n; i++) {
        const struct nib_choice *choice = &g->choices[i];
        json_array_append_new(choices,
                              json_pack("{s:i, s:o, s:o, s:s}", "index", choice->index, "message",
                                        message_json(choice), "logprobs", logprobs_json(g, choice->logprobs),
                                        "finish_reason", choice->finish_reason));
    }
    nib_exchange_answer(g->exchange, 200,
                        json_pack("{s:s, s:s, s:I, s:s, s:o, s:o}", "id", g->id.text, "object", "chat.completion",
                                  "created", (json_int_t)g->created, "model", g->server->options.model_name,
                                  "choices", choices, "usage", nib_generation_usage(g)));
}

static void done(struct nib_generation *g)
{
    if (!g->stream) {
        answer(g);
        return;
    }
    if (g->include_usage)
        nib_exchange_send(g->exchange, NULL, chunk(g, json_array(), true));
    nib_exchange_send_text(g->exchange, "[DONE]");
    nib_exchange_end(g->exchange);
}

static const struct nib_reply_format chat_format = {stream_begin, stream_delta, stream_end, done, false};

// ---- reading ----

static const char *const ignored_fields[] = {
    "user", "metadata", "store", "service_tier", "prompt_cache_key", "prompt_cache_retention", "safety_identifier",
    NULL};

static bool read_length(struct nib_generation *g, const struct nib_fields *fields)
{
    int64_t most = INT32_MAX;
    return nib_field_int(fields, "max_tokens", 1, most, &g->max_tokens) &&
           nib_field_int(fields, "max_completion_tokens", 1, most, &g->max_tokens);
}

static bool read_logprobs(struct nib_generation *g, const struct nib_fields *fields)
{
    if (!nib_field_bool(fields, "logprobs", &g->logprobs) ||
        !nib_field_int(fields, "top_logprobs", 0, NIB_MAX_TOP_LOGPROBS, &g->top_logprobs))
        return false;
    if (nib_field(fields, "top_logprobs") && !g->logprobs)
        return nib_field_fail(fields, "top_logprobs", "invalid_value",
                              "'top_logprobs' needs 'logprobs' to be true.");
    return true;
}

static bool read_modalities(const struct nib_fields *fields)
{
    const json_t *modalities = NULL;
    if (!nib_field_array(fields, "modalities", 8, &modalities))
        return false;
    for (size_t i = 0; i < json_array_size(modalities); i++) {
        const char *name = json_string_value(json_array_get(modalities, i));
        if (!name || strcmp(name, "text") != 0)
            return nib_field_fail(fields, "modalities", "unsupported_value",
                                  "'modalities' can only be [\"text\"].");
    }
    return true;
}

static bool read_request(struct nib_generation *g, struct nib_chat_request *request,
                         const struct nib_fields *fields)
{
    static const char *const own[] = {"messages",
                                      "max_tokens",
                                      "max_completion_tokens",
                                      "logprobs",
                                      "top_logprobs",
                                      "tools",
                                      "tool_choice",
                                      "parallel_tool_calls",
                                      "modalities",
                                      "reasoning_effort",
                                      "response_format",
                                      "chat_template_kwargs",
                                      NULL};
    return nib_generation_only(fields, own, ignored_fields) && nib_generation_read(g, fields) &&
           read_length(g, fields) && read_logprobs(g, fields) && read_modalities(fields) &&
           nib_read_effort(request, fields, "reasoning_effort") && nib_read_thinking(request, fields) &&
           nib_read_tools(request, fields, false) && nib_read_format(request, fields, "response_format", false) &&
           nib_read_messages(request, fields);
}

void nib_serve_chat(struct nib_server *server, struct nib_exchange *exchange, struct nib_text body)
{
    struct nib_api_error error;
    struct nib_fields fields;
    struct nib_chat_request request = {0};
    json_t *json = nib_parse_body(body, &error);
    struct nib_generation *g =
        json ? nib_generation_create(server, exchange, &chat_format, json, "chatcmpl-") : NULL;
    bool served = false;
    if (json && !g)
        nib_api_fail(&error, 500, NULL, NULL, "out of memory");
    else if (json) {
        g->chat = true;
        served = nib_generation_chats(g, &error) && nib_fields_open(&fields, json, &error, "%s", "") &&
                 read_request(g, &request, &fields) && nib_generation_encode(g, &request, "messages", &error) &&
                 nib_generation_submit(g, "messages", &error);
    }
    nib_chat_request_free(&request);
    if (!served)
        nib_exchange_fail(exchange, &error);
}
