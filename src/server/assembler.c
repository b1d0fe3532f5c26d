#include "server/assembler.h"

#include <math.h>

static void tell(struct nib_assembler *a, enum nib_delta_kind kind, struct nib_text text)
{
    struct nib_delta delta = {.kind = kind, .text = text, .call = a->calls ? a->calls - 1 : 0};
    if (kind == NIB_DELTA_CALL)
        delta.id = a->id;
    if (kind != NIB_DELTA_CALL && text.size == 0)
        return;
    if (kind == NIB_DELTA_CONTENT)
        delta.logprobs = a->entries;
    a->on_delta(a->context, &delta);
    if (kind == NIB_DELTA_CONTENT)
        json_array_clear(a->entries);
}

// The text of the open message goes on. Content is searched for stop strings.
static void take_text(struct nib_assembler *a, struct nib_text bytes, bool last)
{
    struct nib_error *none = NULL;
    if (a->stopped || a->status)
        return;
    a->whole.size = a->shown.size = 0;
    a->status = nib_utf8_stream_push(&a->utf8, bytes.bytes, bytes.size, &a->whole, none);
    if (!a->status && last)
        a->status = nib_utf8_stream_flush(&a->utf8, &a->whole, none);
    struct nib_text text = {a->whole.data, a->whole.size};
    if (!a->status && a->kind == NIB_DELTA_CONTENT && a->stop.count) {
        a->status = nib_stop_strings_push(&a->stop, text.bytes, text.size, &a->shown, &a->stopped, none);
        if (!a->status && last && !a->stopped)
            a->status = nib_stop_strings_flush(&a->stop, &a->shown, none);
        text = (struct nib_text){a->shown.data, a->shown.size};
    }
    if (a->status)
        return;
    if (a->kind == NIB_DELTA_CONTENT && a->separate && text.size) {
        struct nib_delta line_break = {.kind = NIB_DELTA_CONTENT, .text = nib_text_of("\n")};
        a->on_delta(a->context, &line_break);
        a->separate = false;
    }
    tell(a, a->kind, text);
}

// "functions.get_weather" is the function get_weather; other recipients keep their whole name.
static struct nib_text function_name(struct nib_text recipient)
{
    static const char prefix[] = "functions.";
    size_t skip = sizeof prefix - 1;
    if (recipient.size > skip && memcmp(recipient.bytes, prefix, skip) == 0)
        return (struct nib_text){recipient.bytes + skip, recipient.size - skip};
    return recipient;
}

static void begin_message(struct nib_assembler *a, const struct nib_message *message)
{
    bool assistant = message->role == NIB_ROLE_ASSISTANT;
    bool call = assistant && message->recipient.size && a->tools_offered;
    bool reasoning =
        assistant && !message->recipient.size && nib_text_equal(message->channel, nib_text_of("analysis"));
    a->open = true;
    a->kind = call ? NIB_DELTA_ARGUMENTS : reasoning ? NIB_DELTA_REASONING : NIB_DELTA_CONTENT;
    if (!call)
        return;
    a->calls++;
    a->whole.size = 0;
    struct nib_utf8_stream utf8 = {0};
    struct nib_text name = function_name(message->recipient);
    a->status = nib_utf8_stream_push(&utf8, name.bytes, name.size, &a->whole, NULL);
    if (!a->status)
        a->status = nib_utf8_stream_flush(&utf8, &a->whole, NULL);
    a->id = message->id;
    if (!a->status)
        tell(a, NIB_DELTA_CALL, (struct nib_text){a->whole.data, a->whole.size});
}

static void end_message(struct nib_assembler *a, const struct nib_message *message)
{
    take_text(a, (struct nib_text){0}, true);
    a->separate |= a->kind == NIB_DELTA_CONTENT && message->text.size;
    a->enough |= a->kind == NIB_DELTA_ARGUMENTS && a->one_call && message->end != NIB_END_TRUNCATED;
    a->open = a->has_text = false;
    json_array_clear(a->entries);
}

static void on_chat_event(void *context, const struct nib_chat_event *event)
{
    struct nib_assembler *a = context;
    if (a->status || a->stopped || a->enough)
        return;
    switch (event->kind) {
    case NIB_CHAT_BEGIN:
        begin_message(a, event->message);
        break;
    case NIB_CHAT_DELTA:
        a->has_text = true;
        take_text(a, event->delta, false);
        break;
    case NIB_CHAT_END:
        end_message(a, event->message);
        break;
    }
}

nib_status nib_assembler_init(struct nib_assembler *assembler, const struct nib_chat *chat,
                              const struct nib_tokenizer *tokenizer, nib_delta_handler on_delta, void *context,
                              struct nib_error *err)
{
    *assembler = (struct nib_assembler){.tokenizer = tokenizer,
                                        .on_delta = on_delta,
                                        .context = context,
                                        .kind = NIB_DELTA_CONTENT,
                                        .open = !chat,
                                        .has_text = !chat,
                                        .entries = json_array()};
    return chat ? nib_chat_parser_create(chat, NIB_CHAT_FROM_REPLY, on_chat_event, assembler, &assembler->parser,
                                         err)
                : NIB_OK;
}

void nib_assembler_free(struct nib_assembler *assembler)
{
    nib_chat_parser_free(assembler->parser);
    nib_stop_strings_free(&assembler->stop);
    nib_bytes_free(&assembler->whole);
    nib_bytes_free(&assembler->shown);
    json_decref(assembler->entries);
}

nib_status nib_assembler_preset(struct nib_assembler *assembler, const int32_t *tokens, size_t count)
{
    for (size_t i = 0; i < count && !assembler->status; i++)
        assembler->status = nib_chat_parser_push(assembler->parser, tokens[i], NULL);
    return assembler->status;
}

json_t *nib_text_json(struct nib_text text)
{
    struct nib_utf8_stream utf8 = {0};
    struct nib_bytes clean = {0};
    if (nib_utf8_stream_push(&utf8, text.bytes, text.size, &clean, NULL) == NIB_OK)
        nib_utf8_stream_flush(&utf8, &clean, NULL);
    json_t *json = json_stringn(clean.data ? clean.data : "", clean.size);
    nib_bytes_free(&clean);
    return json;
}

static struct nib_text token_text(const struct nib_tokenizer *tokenizer, int32_t token)
{
    size_t size = 0;
    const uint8_t *bytes = nib_tokenizer_token_bytes(tokenizer, token, &size);
    return (struct nib_text){(const char *)bytes, bytes ? size : 0}; // a padding row of the logits has no bytes
}

json_t *nib_token_logprob_json(const struct nib_tokenizer *tokenizer, const struct nib_token_logprob *token)
{
    struct nib_text text = token_text(tokenizer, token->token);
    json_t *bytes = json_array();
    for (size_t i = 0; i < text.size; i++)
        json_array_append_new(bytes, json_integer((unsigned char)text.bytes[i]));
    double logprob = isfinite(token->logprob) ? fmin((double)token->logprob, 0) : -9999;
    return json_pack("{s:o, s:f, s:o}", "token", nib_text_json(text), "logprob", logprob, "bytes", bytes);
}

static void keep_logprobs(struct nib_assembler *a, const struct nib_event *event)
{
    json_t *entry = nib_token_logprob_json(a->tokenizer, &event->token), *top = json_array();
    for (int32_t i = 0; i < event->n_top; i++)
        json_array_append_new(top, nib_token_logprob_json(a->tokenizer, &event->top[i]));
    json_object_set_new(entry, "top_logprobs", top);
    json_array_append_new(a->entries, entry);
}

// Tokens are kept while they may be content: those of a header that turned out to be text are, those of a real one
// are dropped when it is complete.
static void push_chat(struct nib_assembler *a, const struct nib_event *event)
{
    int32_t token = event->token.token;
    bool ordinary = !nib_tokenizer_is_special(a->tokenizer, token) && token_text(a->tokenizer, token).size;
    bool was_open = a->open;
    if (a->logprobs && ordinary && (!a->open || a->kind == NIB_DELTA_CONTENT))
        keep_logprobs(a, event);
    a->reasoning_tokens += a->open && a->kind == NIB_DELTA_REASONING;
    nib_status status = nib_chat_parser_push(a->parser, token, NULL);
    if (!a->status)
        a->status = status;
    if (!was_open && a->open && !a->has_text)
        json_array_clear(a->entries);
}

bool nib_assembler_push(struct nib_assembler *assembler, const struct nib_event *event)
{
    struct nib_assembler *a = assembler;
    if (a->parser) {
        push_chat(a, event);
    } else if (event->finish != NIB_FINISH_STOP) {
        if (a->logprobs)
            keep_logprobs(a, event);
        take_text(a, token_text(a->tokenizer, event->token.token), false);
    }
    return !a->status && !a->stopped && !a->enough;
}

static enum nib_ending ending_of(const struct nib_assembler *a, enum nib_finish finish)
{
    if (a->stopped)
        return NIB_ENDING_STOP_STRING;
    if (a->enough)
        return NIB_ENDING_ENOUGH;
    if (finish == NIB_FINISH_STOP)
        return NIB_ENDING_STOP;
    return finish == NIB_FINISH_LENGTH ? NIB_ENDING_LENGTH : NIB_ENDING_CUT;
}

const char *nib_assembler_end(struct nib_assembler *assembler, enum nib_finish finish)
{
    static const struct {
        const char *without_calls, *with_calls;
    } reasons[] = {
        [NIB_ENDING_STOP] = {"stop", "tool_calls"},   [NIB_ENDING_STOP_STRING] = {"stop", "stop"},
        [NIB_ENDING_ENOUGH] = {"stop", "tool_calls"}, [NIB_ENDING_LENGTH] = {"length", "length"},
        [NIB_ENDING_CUT] = {"length", "length"},
    };
    if (!assembler->parser)
        take_text(assembler, (struct nib_text){0}, true);
    else if (nib_chat_parser_finish(assembler->parser, NULL))
        assembler->status = NIB_ERR_MEMORY;
    enum nib_ending ending = ending_of(assembler, finish);
    return assembler->calls ? reasons[ending].with_calls : reasons[ending].without_calls;
}
