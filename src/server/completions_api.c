// /v1/completions: text goes on as it is, without a chat around it.
#include "server/generation.h"

// ---- writing ----

static bool continues_character(json_int_t byte) // of UTF-8
{
    return (byte & 0xc0) == 0x80;
}

// {" the": -0.5, …}; of tokens with the same text (parts of characters) the likeliest.
static json_t *top_json(const json_t *entries)
{
    json_t *top = json_object();
    const json_t *entry;
    size_t i;
    json_array_foreach((json_t *)entries, i, entry)
    {
        const char *token = json_string_value(json_object_get(entry, "token"));
        if (!json_object_get(top, token))
            json_object_set(top, token, json_object_get(entry, "logprob"));
    }
    return top;
}

// `offset` is of the first token, in characters, and then of what follows the last; a token that goes on with a character is
// where that one is.
static json_t *logprobs_json(const json_t *entries, size_t *offset)
{
    json_t *tokens = json_array(), *values = json_array(), *tops = json_array(), *offsets = json_array();
    const json_t *entry, *byte;
    size_t i, j;
    json_array_foreach((json_t *)entries, i, entry)
    {
        const json_t *bytes = json_object_get(entry, "bytes");
        bool within = *offset > 0 && continues_character(json_integer_value(json_array_get(bytes, 0)));
        json_array_append(tokens, json_object_get(entry, "token"));
        json_array_append(values, json_object_get(entry, "logprob"));
        json_array_append_new(tops, top_json(json_object_get(entry, "top_logprobs")));
        json_array_append_new(offsets, json_integer((json_int_t)*offset - within));
        json_array_foreach((json_t *)bytes, j, byte) *offset += !continues_character(json_integer_value(byte));
    }
    return json_pack("{s:o, s:o, s:o, s:o}", "tokens", tokens, "token_logprobs", values, "top_logprobs", tops,
                     "text_offset", offsets);
}

static json_t *choice_json(const struct nib_choice *choice, struct nib_text text, const json_t *entries,
                           size_t *offset, const char *finish_reason)
{
    bool wanted = choice->generation->logprobs && entries;
    return json_pack("{s:i, s:o, s:o, s:s?}", "index", choice->index, "text",
                     json_stringn(text.bytes ? text.bytes : "", text.size), "logprobs",
                     wanted ? logprobs_json(entries, offset) : json_null(), "finish_reason", finish_reason);
}

// Takes `choices` over.
static json_t *completion(const struct nib_generation *g, json_t *choices)
{
    return json_pack("{s:s, s:s, s:I, s:s, s:o}", "id", g->id.text, "object", "text_completion", "created",
                     (json_int_t)g->created, "model", g->server->options.model_name, "choices", choices);
}

static void stream_delta(struct nib_choice *choice, const struct nib_delta *delta)
{
    json_t *one = choice_json(choice, delta->text, delta->logprobs, &choice->characters, NULL);
    nib_exchange_send(choice->generation->exchange, NULL, completion(choice->generation, json_pack("[o]", one)));
}

static void stream_end(struct nib_choice *choice)
{
    json_t *one = choice_json(choice, (struct nib_text){0}, NULL, NULL, choice->finish_reason);
    nib_exchange_send(choice->generation->exchange, NULL, completion(choice->generation, json_pack("[o]", one)));
}

static void done(struct nib_generation *g)
{
    json_t *choices = json_array(), *whole;
    for (int64_t i = 0; !g->stream && i < g->n; i++) {
        struct nib_choice *choice = &g->choices[i];
        struct nib_text text = {choice->content.data, choice->content.size};
        json_array_append_new(
            choices, choice_json(choice, text, choice->logprobs, &choice->characters, choice->finish_reason));
    }
    whole = completion(g, choices);
    json_object_set_new(whole, "usage", nib_generation_usage(g));
    if (!g->stream) {
        nib_exchange_answer(g->exchange, 200, whole);
        return;
    }
    if (g->include_usage)
        nib_exchange_send(g->exchange, NULL, whole);
    else
        json_decref(whole);
    nib_exchange_send_text(g->exchange, "[DONE]");
    nib_exchange_end(g->exchange);
}

static const struct nib_reply_format completion_format = {NULL, stream_delta, stream_end, done, false};

// ---- reading ----

static bool no_prompt(const struct nib_generation *g, const struct nib_fields *fields, const char *code)
{
    return nib_field_fail(fields, "prompt", code,
                          "'prompt' must be a string, an array of token ids from 0 to %d, or an array of either.",
                          g->server->backend.vocab - 1);
}

static bool read_ids(struct nib_generation *g, const struct nib_fields *fields, const json_t *ids)
{
    const json_t *item;
    size_t i;
    json_array_foreach((json_t *)ids, i, item)
    {
        json_int_t id = json_is_integer(item) ? json_integer_value(item) : -1;
        if (id < 0 || id >= g->server->backend.vocab)
            return no_prompt(g, fields, "invalid_value");
        if (nib_token_list_add(&g->prompt, (int32_t)id, NULL))
            return nib_api_fail(fields->error, 500, NULL, NULL, "out of memory");
    }
    return true;
}

// A string, in which control tokens count, or ids.
static bool read_prompt(struct nib_generation *g, const struct nib_fields *fields, const json_t *prompt)
{
    struct nib_error err;
    if (json_is_array(prompt))
        return read_ids(g, fields, prompt);
    if (!json_is_string(prompt))
        return no_prompt(g, fields, "invalid_type");
    nib_status status = nib_tokenizer_encode(g->server->tokenizer, json_string_value(prompt),
                                             json_string_length(prompt), NIB_ENCODE_SPECIAL, &g->prompt, &err);
    return !status || nib_api_fail_status(fields->error, "prompt", &err);
}

static bool read_prompts(struct nib_generation *g, const struct nib_fields *fields)
{
    const json_t *prompt = nib_field(fields, "prompt"), *first = json_array_get(prompt, 0), *one;
    size_t i;
    if (!nib_field_require(fields, "prompt"))
        return false;
    if (!json_is_string(first) && !json_is_array(first))
        return read_prompt(g, fields, prompt);
    json_array_foreach((json_t *)prompt, i, one)
    {
        if (!read_prompt(g, fields, one) || !nib_generation_end_prompt(g, fields->error))
            return false;
    }
    return true;
}

static bool read_request(struct nib_generation *g, const struct nib_fields *fields)
{
    static const char *const own[] = {"prompt", "max_tokens", "logprobs", NULL};
    static const char *const ignored[] = {"user", "best_of", "echo", "suffix", NULL};
    bool echo = false;
    int64_t most = INT32_MAX, best_of = 1, logprobs = -1;
    struct nib_text suffix = {0};
    if (!nib_generation_only(fields, own, ignored) || !nib_generation_read(g, fields) ||
        !read_prompts(g, fields) || !nib_field_int(fields, "max_tokens", 1, most, &g->max_tokens) ||
        !nib_field_int(fields, "logprobs", 0, NIB_MAX_TOP_LOGPROBS, &logprobs) ||
        !nib_field_bool(fields, "echo", &echo) || !nib_field_text(fields, "suffix", &suffix) ||
        !nib_field_int(fields, "best_of", 1, 20, &best_of))
        return false;
    if (echo || suffix.size || (best_of != 1 && best_of != g->n))
        return nib_field_fail(fields,
                              echo          ? "echo"
                              : suffix.size ? "suffix"
                                            : "best_of",
                              "unsupported_value", "echo, suffix and best_of are not supported.");
    g->logprobs = logprobs >= 0;
    g->top_logprobs = g->logprobs ? logprobs : 0;
    return true;
}

void nib_serve_completions(struct nib_server *server, struct nib_exchange *exchange, struct nib_text body)
{
    struct nib_api_error error;
    struct nib_fields fields;
    json_t *json = nib_parse_body(body, &error);
    struct nib_generation *g =
        json ? nib_generation_create(server, exchange, &completion_format, json, "cmpl-") : NULL;
    bool served = false;
    if (json && !g)
        nib_api_fail(&error, 500, NULL, NULL, "out of memory");
    else if (json)
        served = nib_fields_open(&fields, json, &error, "%s", "") && read_request(g, &fields) &&
                 nib_generation_submit(g, "prompt", &error);
    if (!served)
        nib_exchange_fail(exchange, &error);
}
