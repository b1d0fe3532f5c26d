// /v1/responses: reasoning, messages and function calls as items, and events about them.
#include <stdio.h>
#include <stdlib.h>

#include "server/date.h"
#include "server/generation.h"
#include "server/response_store.h"
#include "server/responses_request.h"

// The answer as it grows: finished items, and the one being written.
struct response {
    json_t *items;  // of the conversation before the answer
    json_t *output; // array of finished items
    json_t *open;   // item being written, or NULL; its text is in `text`
    enum nib_delta_kind kind;
    struct nib_bytes text;
    json_t *logprobs;    // array: of the open message's tokens, when they are wanted
    json_int_t sequence; // number of the next event
    bool store;
};

static void free_response(void *state)
{
    struct response *r = state;
    json_decref(r->items);
    json_decref(r->output);
    json_decref(r->open);
    json_decref(r->logprobs);
    nib_bytes_free(&r->text);
    free(r);
}

static json_t *text_of(const struct response *r)
{
    return json_stringn(r->text.data ? r->text.data : "", r->text.size);
}

static json_t *or_null(const struct nib_generation *g, const char *name)
{
    json_t *value = json_object_get(g->body, name);
    return value ? json_incref(value) : json_null();
}

static json_t *usage_json(const struct nib_generation *g)
{
    json_int_t input = (json_int_t)g->prompt.count, output = (json_int_t)nib_generation_completion_tokens(g);
    return json_pack("{s:I, s:{s:I}, s:I, s:{s:I}, s:I}", "input_tokens", input, "input_tokens_details",
                     "cached_tokens", (json_int_t)nib_generation_cached_tokens(g), "output_tokens", output,
                     "output_tokens_details", "reasoning_tokens", (json_int_t)nib_generation_reasoning_tokens(g),
                     "total_tokens", input + output);
}

static json_t *response_json(const struct nib_generation *g, const char *status)
{
    const struct response *r = g->state;
    bool over = strcmp(status, "in_progress") != 0, cut = strcmp(status, "incomplete") == 0;
    json_t *tools = json_object_get(g->body, "tools"), *choice = json_object_get(g->body, "tool_choice");
    json_t *json =
        json_pack("{s:s, s:s, s:I, s:s, s:n, s:o, s:o, s:s, s:O}", "id", g->id.text, "object", "response",
                  "created_at", (json_int_t)g->created, "status", status, "error", "incomplete_details",
                  cut ? json_pack("{s:s}", "reason", "max_output_tokens") : json_null(), "instructions",
                  or_null(g, "instructions"), "model", g->server->options.model_name, "output", r->output);
    json_object_set_new(json, "parallel_tool_calls", json_boolean(!g->one_call));
    json_object_set_new(json, "previous_response_id", or_null(g, "previous_response_id"));
    json_object_set_new(json, "metadata", or_null(g, "metadata"));
    json_object_set_new(json, "temperature", json_real(g->temperature));
    json_object_set_new(json, "top_p", json_real(g->top_p));
    json_object_set_new(json, "max_output_tokens", or_null(g, "max_output_tokens"));
    json_object_set_new(json, "tool_choice", choice ? json_incref(choice) : json_string("auto"));
    json_object_set_new(json, "tools", tools ? json_incref(tools) : json_array());
    json_object_set_new(json, "usage", over ? usage_json(g) : json_null());
    // `output` goes on growing.
    json_t *copy = json_deep_copy(json);
    json_decref(json);
    return copy;
}

// ---- events; each takes `fields` over ----

static void send(struct nib_generation *g, const char *type, json_t *fields)
{
    struct response *r = g->state;
    if (!g->stream) {
        json_decref(fields);
        return;
    }
    json_object_set_new(fields, "type", json_string(type));
    json_object_set_new(fields, "sequence_number", json_integer(r->sequence++));
    nib_exchange_send(g->exchange, type, fields);
}

// An event about the open item.
static void send_item(struct nib_generation *g, const char *type, json_t *fields)
{
    const struct response *r = g->state;
    json_object_set(fields, "item_id", json_object_get(r->open, "id"));
    json_object_set_new(fields, "output_index", json_integer((json_int_t)json_array_size(r->output)));
    send(g, type, fields);
}

// The open item's text, or none yet.
static json_t *part_json(const struct response *r, json_t *text)
{
    if (r->kind == NIB_DELTA_REASONING)
        return json_pack("{s:s, s:o}", "type", "reasoning_text", "text", text);
    return json_pack("{s:s, s:o, s:[], s:o}", "type", "output_text", "text", text, "annotations", "logprobs",
                     json_copy(r->logprobs));
}

static void open_item(const struct nib_choice *choice, enum nib_delta_kind kind)
{
    struct nib_generation *g = choice->generation;
    struct response *r = g->state;
    r->kind = kind;
    r->text.size = 0;
    json_array_clear(r->logprobs);
    if (kind == NIB_DELTA_REASONING) {
        r->open = json_pack("{s:s, s:s, s:[], s:[]}", "type", "reasoning", "id", nib_make_id("rs_").text,
                            "summary", "content");
    } else if (kind == NIB_DELTA_CONTENT) {
        r->open = json_pack("{s:s, s:s, s:s, s:s, s:[]}", "type", "message", "id", nib_make_id("msg_").text,
                            "role", "assistant", "status", "in_progress", "content");
    } else {
        const struct nib_called *call = &choice->calls[choice->n_calls - 1];
        r->open = json_pack("{s:s, s:s, s:s, s:s, s:s%, s:s}", "type", "function_call", "id",
                            nib_make_id("fc_").text, "status", "in_progress", "call_id", call->id.text, "name",
                            call->name.data, call->name.size, "arguments", "");
    }
    json_int_t index = (json_int_t)json_array_size(r->output);
    send(g, "response.output_item.added",
         json_pack("{s:I, s:o}", "output_index", index, "item", json_deep_copy(r->open)));
    if (kind != NIB_DELTA_ARGUMENTS)
        send_item(g, "response.content_part.added",
                  json_pack("{s:i, s:o}", "content_index", 0, "part", part_json(r, json_string(""))));
}

static void close_item(struct nib_generation *g, const char *status)
{
    struct response *r = g->state;
    if (!r->open)
        return;
    if (r->kind == NIB_DELTA_ARGUMENTS) {
        send_item(g, "response.function_call_arguments.done",
                  json_pack("{s:o, s:O}", "arguments", text_of(r), "name", json_object_get(r->open, "name")));
        json_object_set_new(r->open, "arguments", text_of(r));
    } else {
        bool reasoning = r->kind == NIB_DELTA_REASONING;
        json_t *done = json_pack("{s:i, s:o}", "content_index", 0, "text", text_of(r));
        if (!reasoning)
            json_object_set_new(done, "logprobs", json_copy(r->logprobs));
        send_item(g, reasoning ? "response.reasoning_text.done" : "response.output_text.done", done);
        send_item(g, "response.content_part.done",
                  json_pack("{s:i, s:o}", "content_index", 0, "part", part_json(r, text_of(r))));
        json_array_append_new(json_object_get(r->open, "content"), part_json(r, text_of(r)));
    }
    if (r->kind != NIB_DELTA_REASONING)
        json_object_set_new(r->open, "status", json_string(status));
    send(g, "response.output_item.done",
         json_pack("{s:I, s:o}", "output_index", (json_int_t)json_array_size(r->output), "item",
                   json_deep_copy(r->open)));
    json_array_append_new(r->output, r->open);
    r->open = NULL;
}

static void on_delta(struct nib_choice *choice, const struct nib_delta *delta)
{
    struct nib_generation *g = choice->generation;
    struct response *r = g->state;
    enum nib_delta_kind kind = delta->kind == NIB_DELTA_CALL ? NIB_DELTA_ARGUMENTS : delta->kind;
    if (r->open && (r->kind != kind || delta->kind == NIB_DELTA_CALL))
        close_item(g, "completed");
    if (!r->open)
        open_item(choice, kind);
    if (delta->kind == NIB_DELTA_CALL)
        return;
    if (nib_bytes_append(&r->text, delta->text.bytes, delta->text.size, NULL))
        choice->assembler.status = NIB_ERR_MEMORY;
    if (delta->logprobs)
        json_array_extend(r->logprobs, delta->logprobs);
    json_t *text = json_stringn(delta->text.bytes, delta->text.size);
    if (kind == NIB_DELTA_ARGUMENTS)
        send_item(g, "response.function_call_arguments.delta", json_pack("{s:o}", "delta", text));
    else if (kind == NIB_DELTA_REASONING)
        send_item(g, "response.reasoning_text.delta", json_pack("{s:i, s:o}", "content_index", 0, "delta", text));
    else
        send_item(g, "response.output_text.delta",
                  json_pack("{s:i, s:o, s:o}", "content_index", 0, "delta", text, "logprobs",
                            delta->logprobs ? json_copy(delta->logprobs) : json_array()));
}

static void begin(struct nib_choice *choice)
{
    struct nib_generation *g = choice->generation;
    send(g, "response.created", json_pack("{s:o}", "response", response_json(g, "in_progress")));
    send(g, "response.in_progress", json_pack("{s:o}", "response", response_json(g, "in_progress")));
}

static void end(struct nib_choice *choice)
{
    (void)choice;
}

static void done(struct nib_generation *g)
{
    struct response *r = g->state;
    bool cut = strcmp(g->choices[0].finish_reason, "length") == 0;
    const char *status = cut ? "incomplete" : "completed";
    close_item(g, status);
    json_t *json = response_json(g, status);
    if (r->store) {
        json_array_extend(r->items, r->output);
        nib_response_store_put(g->server->responses, g->id.text, r->items);
    }
    if (!g->stream) {
        nib_exchange_answer(g->exchange, 200, json);
        return;
    }
    send(g, cut ? "response.incomplete" : "response.completed", json_pack("{s:o}", "response", json));
    nib_exchange_end(g->exchange);
}

static const struct nib_reply_format responses_format = {begin, on_delta, end, done, true};

// ---- reading ----

// What was said before, and what is new; the items are kept for the next request.
static bool read_input(struct nib_generation *g, struct nib_chat_request *request, const struct nib_fields *fields)
{
    struct response *r = g->state;
    const json_t *input = nib_field(fields, "input");
    struct nib_text instructions = {0}, previous = {0};
    if (!nib_field_text(fields, "instructions", &instructions) ||
        !nib_field_text(fields, "previous_response_id", &previous) || !nib_field_require(fields, "input"))
        return false;
    if (instructions.size && !nib_chat_request_instruct(request, instructions, fields->error))
        return false;
    r->items = previous.size ? nib_response_store_get(g->server->responses, previous.bytes) : json_array();
    if (!r->items) {
        nib_field_fail(fields, "previous_response_id", "previous_response_not_found",
                       "The response '%.60s' is not, or no longer, known.", previous.bytes);
        fields->error->status = 404;
        return false;
    }
    if (json_is_string(input))
        json_array_append_new(r->items,
                              json_pack("{s:s, s:s, s:O}", "type", "message", "role", "user", "content", input));
    else if (json_is_array(input) && json_array_size(input) > 0 && json_array_size(input) <= 4096)
        json_array_extend(r->items, (json_t *)input);
    else
        return nib_field_fail(fields, "input", "invalid_type",
                              "'input' must be a string or an array of 1 to 4096 items.");
    return nib_read_items(request, fields, "input", r->items);
}

static bool read_parts(struct nib_chat_request *request, const struct nib_fields *fields)
{
    static const char *const text_known[] = {"format", NULL}, *const text_ignored[] = {"verbosity", NULL};
    static const char *const reasoning_known[] = {"effort", NULL};
    static const char *const reasoning_ignored[] = {"summary", "generate_summary", NULL};
    struct nib_fields inner;
    request->effort = NIB_EFFORT_MEDIUM;
    if (nib_field(fields, "reasoning") &&
        (!nib_fields_open(&inner, nib_field(fields, "reasoning"), fields->error, "reasoning") ||
         !nib_fields_only(&inner, reasoning_known, reasoning_ignored) ||
         !nib_read_effort(request, &inner, "effort")))
        return false;
    return !nib_field(fields, "text") ||
           (nib_fields_open(&inner, nib_field(fields, "text"), fields->error, "text") &&
            nib_fields_only(&inner, text_known, text_ignored) && nib_read_format(request, &inner, "format", true));
}

// "include": what to add to the answer. Reasoning is never encrypted, so whoever asks for that has it in plain text.
static bool read_include(struct nib_generation *g, const struct nib_fields *fields)
{
    const json_t *include = NULL;
    if (!nib_field_array(fields, "include", 16, &include))
        return false;
    for (size_t i = 0; i < json_array_size(include); i++) {
        const char *name = json_string_value(json_array_get(include, i));
        char place[40];
        snprintf(place, sizeof place, "include[%zu]", i);
        if (!name)
            return nib_field_fail(fields, place, "invalid_type", "'%s' must be a string.", place);
        if (strcmp(name, "message.output_text.logprobs") == 0)
            g->logprobs = true;
        else if (strcmp(name, "reasoning.encrypted_content") != 0)
            return nib_field_fail(fields, place, "unsupported_value", "'%s' is '%.60s', which there is not here.",
                                  place, name);
    }
    if (!nib_field_int(fields, "top_logprobs", 0, NIB_MAX_TOP_LOGPROBS, &g->top_logprobs))
        return false;
    return !nib_field(fields, "top_logprobs") || g->logprobs ||
           nib_field_fail(fields, "top_logprobs", "invalid_value",
                          "'top_logprobs' needs 'message.output_text.logprobs' in 'include'.");
}

static bool read_request(struct nib_generation *g, struct nib_chat_request *request,
                         const struct nib_fields *fields)
{
    static const char *const own[] = {"input",
                                      "instructions",
                                      "previous_response_id",
                                      "max_output_tokens",
                                      "tools",
                                      "tool_choice",
                                      "parallel_tool_calls",
                                      "reasoning",
                                      "text",
                                      "store",
                                      "include",
                                      "top_logprobs",
                                      NULL};
    static const char *const ignored[] = {
        "user", "metadata", "service_tier", "prompt_cache_key", "safety_identifier", "truncation", NULL};
    struct response *r = g->state;
    r->store = true;
    bool read = nib_generation_only(fields, own, ignored) && nib_generation_read(g, fields) &&
                nib_field_int(fields, "max_output_tokens", 1, INT32_MAX, &g->max_tokens) &&
                nib_field_bool(fields, "store", &r->store) && read_include(g, fields) &&
                read_parts(request, fields) && nib_read_tools(request, fields, true) &&
                read_input(g, request, fields);
    return read && (g->n == 1 || nib_field_fail(fields, "n", "unsupported_value", "'n' can only be 1 here."));
}

void nib_serve_responses(struct nib_server *server, struct nib_exchange *exchange, struct nib_text body)
{
    struct nib_api_error error;
    struct nib_fields fields;
    struct nib_chat_request request = {0};
    json_t *json = nib_parse_body(body, &error);
    struct nib_generation *g =
        json ? nib_generation_create(server, exchange, &responses_format, json, "resp_") : NULL;
    struct response *state = g ? calloc(1, sizeof *state) : NULL;
    bool served = false;
    if (state) {
        g->chat = true;
        g->state = state;
        g->free_state = free_response;
        state->output = json_array();
        state->logprobs = json_array();
        served = nib_generation_chats(g, &error) && nib_fields_open(&fields, json, &error, "%s", "") &&
                 read_request(g, &request, &fields) && nib_generation_encode(g, &request, "input", &error) &&
                 nib_generation_submit(g, "input", &error);
    } else if (json) {
        nib_api_fail(&error, 500, NULL, NULL, "out of memory");
    }
    nib_chat_request_free(&request);
    if (!served)
        nib_exchange_fail(exchange, &error);
}
