#include "cli/answer.h"

#include <math.h>
#include <stdlib.h>

static nib_status say(struct answer *answer, struct nib_text text, struct nib_error *err)
{
    show_text(&answer->show, text);
    return messages_extend(&answer->messages, text.bytes, text.size, err);
}

// More bytes of the open message: made whole characters, and, unless it is reasoning, searched for stop strings.
static nib_status take_bytes(struct answer *answer, struct nib_text bytes, bool last, struct nib_error *err)
{
    const struct nib_message *message = &answer->messages.items[answer->messages.count - 1].message;
    answer->whole.size = answer->shown.size = 0;
    nib_status status = nib_utf8_stream_push(&answer->utf8, bytes.bytes, bytes.size, &answer->whole, err);
    if (!status && last)
        status = nib_utf8_stream_flush(&answer->utf8, &answer->whole, err);
    if (status || answer->stopped)
        return status;
    if (message_is_reasoning(message))
        return say(answer, (struct nib_text){answer->whole.data, answer->whole.size}, err);
    status = nib_stop_strings_push(answer->stop, answer->whole.data, answer->whole.size, &answer->shown,
                                   &answer->stopped, err);
    if (!status && last)
        status = nib_stop_strings_flush(answer->stop, &answer->shown, err);
    return status ? status : say(answer, (struct nib_text){answer->shown.data, answer->shown.size}, err);
}

static nib_status begin_message(struct answer *answer, const struct nib_message *header, struct nib_error *err)
{
    struct nib_message message = *header;
    message.text = (struct nib_text){0};
    show_begin(&answer->show, &message);
    return messages_add(&answer->messages, &message, err);
}

static nib_status end_message(struct answer *answer, enum nib_end end, struct nib_error *err)
{
    nib_status status = take_bytes(answer, (struct nib_text){0}, true, err);
    answer->messages.items[answer->messages.count - 1].message.end = answer->stopped ? NIB_END_DEFAULT : end;
    show_end(&answer->show);
    return status;
}

static void on_chat_event(void *context, const struct nib_chat_event *event)
{
    struct answer *answer = context;
    nib_status status = NIB_OK;
    bool beyond_stop = answer->stopped && event->index >= answer->messages.count;
    if (answer->error.status || beyond_stop)
        return;
    if (event->kind == NIB_CHAT_BEGIN)
        status = begin_message(answer, event->message, &answer->error);
    else if (event->kind == NIB_CHAT_DELTA)
        status = take_bytes(answer, event->delta, false, &answer->error);
    else
        status = end_message(answer, event->message->end, &answer->error);
    answer->error.status = status;
}

nib_status answer_begin(struct answer *answer, const struct nib_tokenizer *tokenizer, const struct nib_chat *chat,
                        struct nib_stop_strings *stop, const struct show *show, bool logprobs,
                        struct nib_error *err)
{
    *answer = (struct answer){.tokenizer = tokenizer, .chat = chat, .stop = stop, .show = *show};
    nib_stop_strings_reset(stop);
    if (logprobs)
        answer->logprobs = json_array();
    if (chat)
        return nib_chat_parser_create(chat, NIB_CHAT_FROM_REPLY, on_chat_event, answer, &answer->parser, err);
    struct nib_message plain = {.role = NIB_ROLE_ASSISTANT};
    return begin_message(answer, &plain, err);
}

nib_status answer_preset(struct answer *answer, const int32_t *tokens, size_t count, struct nib_error *err)
{
    nib_status status = NIB_OK;
    for (size_t i = 0; i < count && !status; i++)
        status = nib_chat_parser_push(answer->parser, tokens[i], err);
    return status;
}

// Bytes that are no whole characters become U+FFFD.
static json_t *text_json(struct nib_text text)
{
    struct nib_utf8_stream utf8 = {0};
    struct nib_bytes clean = {0};
    if (nib_utf8_stream_push(&utf8, text.bytes, text.size, &clean, NULL) == NIB_OK)
        nib_utf8_stream_flush(&utf8, &clean, NULL);
    json_t *json = json_stringn(clean.data ? clean.data : "", clean.size);
    nib_bytes_free(&clean);
    return json;
}

static json_t *token_json(const struct nib_tokenizer *tokenizer, const struct nib_token_logprob *token)
{
    size_t size = 0;
    const uint8_t *bytes = nib_tokenizer_token_bytes(tokenizer, token->token, &size);
    json_t *json = json_object();
    json_object_set_new(json, "token", text_json((struct nib_text){(const char *)bytes, bytes ? size : 0}));
    json_object_set_new(json, "id", json_integer(token->token));
    json_object_set_new(json, "logprob", json_real(isfinite(token->logprob) ? (double)token->logprob : -9999));
    return json;
}

static void record_logprobs(struct answer *answer, const struct nib_event *event)
{
    json_t *entry = token_json(answer->tokenizer, &event->token), *top = json_array();
    for (int32_t i = 0; i < event->n_top; i++)
        json_array_append_new(top, token_json(answer->tokenizer, &event->top[i]));
    json_object_set_new(entry, "top", top);
    json_array_append_new(answer->logprobs, entry);
}

bool answer_token(void *context, const struct nib_event *event)
{
    struct answer *answer = context;
    if (answer->logprobs)
        record_logprobs(answer, event);
    nib_status status = NIB_OK;
    if (answer->chat) {
        struct nib_error err;
        if ((status = nib_chat_parser_push(answer->parser, event->token.token, &err)) && !answer->error.status)
            answer->error = err;
    } else {
        size_t size = 0;
        const uint8_t *bytes = nib_tokenizer_token_bytes(answer->tokenizer, event->token.token, &size);
        struct nib_text text = {(const char *)bytes, bytes ? size : 0}; // a padding row of the logits has no bytes
        status = answer->error.status = take_bytes(answer, text, false, &answer->error);
    }
    return !status && !answer->error.status && !answer->stopped;
}

nib_status answer_end(struct answer *answer, int32_t stop_token, struct nib_error *err)
{
    nib_status status = NIB_OK;
    if (!answer->chat)
        status = end_message(answer, stop_token < 0 ? NIB_END_TRUNCATED : NIB_END_DEFAULT, err);
    else if (stop_token >= 0)
        status = nib_chat_parser_push(answer->parser, stop_token, err);
    if (!status && answer->chat)
        status = nib_chat_parser_finish(answer->parser, err);
    show_end(&answer->show);
    if (!status && answer->error.status) {
        *err = answer->error;
        status = err->status;
    }
    return status;
}

void answer_free(struct answer *answer)
{
    nib_chat_parser_free(answer->parser);
    nib_bytes_free(&answer->whole);
    nib_bytes_free(&answer->shown);
    messages_free(&answer->messages);
    json_decref(answer->logprobs);
    *answer = (struct answer){0};
}

bool answer_calls_tool(const struct answer *answer)
{
    bool calls = false;
    for (size_t i = 0; i < answer->messages.count; i++) {
        const struct nib_message *message = &answer->messages.items[i].message;
        calls |= message_is_call(message) && message->end == NIB_END_CALL;
    }
    return calls;
}

// ---- JSON ----

static json_t *message_json(const struct nib_message *message)
{
    json_t *json = json_object();
    if (message->channel.size)
        json_object_set_new(json, "channel", text_json(message->channel));
    if (message->recipient.size)
        json_object_set_new(json, "recipient", text_json(message->recipient));
    if (message->content_type.size)
        json_object_set_new(json, "content_type", text_json(message->content_type));
    json_object_set_new(json, "text", text_json(message->text));
    return json;
}

// "functions.get_weather" is the function get_weather; other recipients keep their whole name.
static json_t *call_json(const struct nib_message *message)
{
    static const char prefix[] = "functions.";
    struct nib_text name = message->recipient;
    size_t skip = sizeof prefix - 1;
    if (name.size > skip && memcmp(name.bytes, prefix, skip) == 0)
        name = (struct nib_text){name.bytes + skip, name.size - skip};
    json_t *json = json_object();
    json_object_set_new(json, "name", text_json(name));
    json_object_set_new(json, "arguments", text_json(message->text));
    return json;
}

static nib_status add_messages(const struct answer *answer, json_t *root)
{
    struct nib_bytes text = {0}, reasoning = {0};
    json_t *messages = json_array(), *calls = json_array();
    nib_status status = NIB_OK;
    for (size_t i = 0; !status && i < answer->messages.count; i++) {
        const struct nib_message *message = &answer->messages.items[i].message;
        json_array_append_new(messages, message_json(message));
        if (message_is_call(message)) {
            json_array_append_new(calls, call_json(message));
            continue;
        }
        struct nib_bytes *into = message_is_reasoning(message) ? &reasoning : &text;
        if (into->size)
            status = nib_bytes_append(into, "\n", 1, NULL);
        if (!status)
            status = nib_bytes_append(into, message->text.bytes, message->text.size, NULL);
    }
    json_object_set_new(root, "text", json_stringn(text.data ? text.data : "", text.size));
    if (answer->chat) {
        json_object_set_new(root, "reasoning", json_stringn(reasoning.data ? reasoning.data : "", reasoning.size));
        json_object_set(root, "messages", messages);
        json_object_set(root, "tool_calls", calls);
    }
    json_decref(messages);
    json_decref(calls);
    nib_bytes_free(&text);
    nib_bytes_free(&reasoning);
    return status;
}

json_t *answer_json(const struct answer *answer, const struct generation *g)
{
    json_t *root = json_object();
    add_messages(answer, root);
    json_object_set_new(root, "finish_reason",
                        json_string(answer_calls_tool(answer) ? "tool_calls" : finish_name(g->finish)));
    json_object_set_new(root, "prompt_tokens", json_integer(g->n_prompt));
    json_object_set_new(root, "generated_tokens", json_integer(g->generated));
    json_object_set_new(root, "prefill_seconds", json_real(g->prefill_seconds));
    json_object_set_new(root, "decode_seconds", json_real(g->decode_seconds));
    json_object_set_new(root, "prefill_tokens_per_second", json_real(prefill_rate(g)));
    json_object_set_new(root, "decode_tokens_per_second", json_real(decode_rate(g)));
    if (answer->logprobs)
        json_object_set(root, "logprobs", answer->logprobs);
    return root;
}
