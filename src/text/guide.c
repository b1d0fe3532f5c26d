#include "text/guide.h"

#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "text/chat_format.h"
#include "text/json_schema.h"
#include "text/tool_markup.h"

#define MAX_BRANCHES 1100

struct branch {
    struct nib_token_list begin, end, next; // the tokens of its frame
    bool goes_on, bound;
    int32_t rule; // when bound
    struct nib_automaton automaton;
    struct nib_token_mask mask;
};

enum place {
    IN_BEGIN, // tokens before `at` began every branch that is possible
    IN_TEXT,
    IN_END,  // end[at] of the current branch is next
    IN_NEXT, // next[at]
};

struct nib_guide {
    const struct nib_mask_vocabulary *vocabulary;
    struct nib_rules rules;
    struct branch *branches; /* [count] */
    size_t count;
    bool *possible; /* [count] */
    enum place place;
    size_t at, current; // current: branch of the text
    int32_t config;     // of its automaton
    uint32_t *bits;     /* [words] scratch */
};

// ---- making ----

static void free_branch(struct branch *branch)
{
    nib_token_list_free(&branch->begin);
    nib_token_list_free(&branch->end);
    nib_token_list_free(&branch->next);
    nib_automaton_free(&branch->automaton);
    nib_token_mask_free(&branch->mask);
}

static nib_status encode_frame(const struct nib_message_frame *frame, const struct nib_tokenizer *tokenizer,
                               struct branch *branch, struct nib_error *err)
{
    nib_status status = nib_pieces_encode(&frame->begin, 0, tokenizer, &branch->begin, err);
    if (!status)
        status = nib_pieces_encode(&frame->end, 0, tokenizer, &branch->end, err);
    if (!status && branch->goes_on)
        status = nib_pieces_encode(&frame->next, 0, tokenizer, &branch->next, err);
    return status;
}

static bool begins_like_another(const struct nib_guide *guide, const struct branch *branch)
{
    for (size_t b = 0; b < guide->count; b++) {
        const struct nib_token_list *other = &guide->branches[b].begin;
        size_t count = branch->begin.count; // 0 where the prompt already holds the beginning
        if (other->count == count &&
            (count == 0 || memcmp(other->ids, branch->begin.ids, count * sizeof *other->ids) == 0))
            return true;
    }
    return false;
}

// Adds a branch, unless the format has no such messages, or writes another kind alike.
static nib_status add_branch(struct nib_guide *guide, const struct nib_chat *chat,
                             const struct nib_tokenizer *tokenizer, const struct nib_guide_branch *wanted,
                             struct nib_error *err)
{
    struct branch *branch = &guide->branches[guide->count];
    struct nib_message_frame frame = {0};
    *branch = (struct branch){.goes_on = wanted->goes_on, .bound = wanted->schema};
    nib_status status = chat->format->frame(chat, &wanted->header, branch->bound, branch->goes_on, &frame, err);
    if (!status && !frame.absent)
        status = encode_frame(&frame, tokenizer, branch, err);
    bool absent = frame.absent || (!status && begins_like_another(guide, branch));
    nib_pieces_free(&frame.begin);
    nib_pieces_free(&frame.end);
    nib_pieces_free(&frame.next);
    if (status || absent) {
        free_branch(branch);
        return status;
    }
    guide->count++;
    if (!branch->bound)
        return NIB_OK;
    return frame.markup ? nib_markup_compile(frame.markup, wanted->schema, &guide->rules, &branch->rule, err)
                        : nib_json_schema_compile(wanted->schema, &guide->rules, &branch->rule, err);
}

// Automatons read the rules, so they come when all rules are there.
static nib_status start_branch(struct nib_guide *guide, struct branch *branch, struct nib_error *err)
{
    nib_status status = nib_automaton_init(&branch->automaton, &guide->rules, branch->rule, err);
    if (!status && branch->automaton.first < 0)
        return nib_fail(err, NIB_ERR_ARGUMENT, "no JSON satisfies the schema");
    return status ? status : nib_token_mask_init(&branch->mask, guide->vocabulary, &branch->automaton, err);
}

static void begin_message(struct nib_guide *guide)
{
    guide->place = IN_BEGIN;
    guide->at = 0;
    for (size_t b = 0; b < guide->count; b++)
        guide->possible[b] = true;
}

nib_status nib_guide_create(const struct nib_chat *chat, const struct nib_tokenizer *tokenizer,
                            const struct nib_mask_vocabulary *vocabulary, const struct nib_guide_branch *branches,
                            size_t count, struct nib_guide **guide, struct nib_error *err)
{
    if (!chat->format->frame)
        return nib_fail(err, NIB_ERR_UNSUPPORTED,
                        "answers in a demanded form are not supported with the chat format %s",
                        chat->format->name);
    if (count > MAX_BRANCHES)
        return nib_fail(err, NIB_ERR_LIMIT, "more than %d kinds of messages", MAX_BRANCHES);
    struct nib_guide *g = calloc(1, sizeof *g);
    if (!g)
        return nib_fail_memory(err, sizeof *g, "a guide");
    g->vocabulary = vocabulary;
    g->branches = calloc(count, sizeof *g->branches);
    g->possible = calloc(count, sizeof *g->possible);
    g->bits = calloc((size_t)nib_mask_words(vocabulary), sizeof *g->bits);
    nib_status status = g->branches && g->possible && g->bits
                            ? NIB_OK
                            : nib_fail_memory(err, count * sizeof *g->branches, "a guide");
    for (size_t b = 0; !status && b < count; b++)
        status = add_branch(g, chat, tokenizer, &branches[b], err);
    for (size_t b = 0; !status && b < g->count; b++)
        if (g->branches[b].bound)
            status = start_branch(g, &g->branches[b], err);
    if (status) {
        nib_guide_free(g);
        return status;
    }
    begin_message(g);
    *guide = g;
    return NIB_OK;
}

void nib_guide_free(struct nib_guide *guide)
{
    if (!guide)
        return;
    for (size_t b = 0; b < guide->count; b++)
        free_branch(&guide->branches[b]);
    nib_rules_free(&guide->rules);
    free(guide->branches);
    free(guide->possible);
    free(guide->bits);
    free(guide);
}

// ---- what may come ----

static void put_bit(struct nib_guide *guide, int32_t token)
{
    if (token >= 0 && token / 32 < nib_mask_words(guide->vocabulary))
        guide->bits[token / 32] |= 1u << (token % 32);
}

static bool may_end(const struct branch *branch, int32_t config)
{
    return !branch->bound || branch->automaton.configs[config]->accepting;
}

// What may come in a branch's text at a configuration, its end included.
static void put_text(struct nib_guide *guide, struct branch *branch, int32_t config)
{
    const uint32_t *mask =
        branch->bound ? nib_token_mask_at(&branch->mask, config) : nib_mask_ordinary(guide->vocabulary);
    for (int32_t word = 0; mask && word < nib_mask_words(guide->vocabulary); word++)
        guide->bits[word] |= mask[word];
    if (may_end(branch, config))
        put_bit(guide, branch->end.ids[0]);
}

const uint32_t *nib_guide_mask(void *context)
{
    struct nib_guide *guide = context;
    struct branch *branch = &guide->branches[guide->current];
    memset(guide->bits, 0, (size_t)nib_mask_words(guide->vocabulary) * sizeof *guide->bits);
    switch (guide->place) {
    case IN_BEGIN:
        for (size_t b = 0; b < guide->count; b++) {
            branch = &guide->branches[b];
            if (guide->possible[b] && guide->at < branch->begin.count)
                put_bit(guide, branch->begin.ids[guide->at]);
            else if (guide->possible[b])
                put_text(guide, branch, branch->automaton.first);
        }
        break;
    case IN_TEXT:
        put_text(guide, branch, guide->config);
        break;
    case IN_END:
        put_bit(guide, branch->end.ids[guide->at]);
        break;
    case IN_NEXT:
        put_bit(guide, branch->next.ids[guide->at]);
        break;
    }
    return guide->bits;
}

// ---- what came ----

// `at` more tokens of the end have come.
static void accept_end(struct nib_guide *guide, size_t at)
{
    const struct branch *branch = &guide->branches[guide->current];
    guide->place = IN_END;
    guide->at = at;
    if (at < branch->end.count)
        return;
    guide->at = branch->goes_on ? 0 : at - 1; // at the answer's end nothing is asked any more
    if (branch->goes_on && branch->next.count)
        guide->place = IN_NEXT;
    else if (branch->goes_on)
        begin_message(guide);
}

static void accept_text(struct nib_guide *guide, int32_t token)
{
    struct branch *branch = &guide->branches[guide->current];
    if (token == branch->end.ids[0] && may_end(branch, guide->config)) {
        accept_end(guide, 1);
    } else if (branch->bound) {
        int32_t next = nib_token_mask_step(&branch->mask, guide->config, token);
        guide->config = next >= 0 ? next : guide->config; // only what the mask allowed comes here
    }
}

static void begin_text(struct nib_guide *guide, size_t branch)
{
    guide->place = IN_TEXT;
    guide->current = branch;
    guide->config = guide->branches[branch].automaton.first;
}

// Whether a branch's text may begin with the token.
static bool may_begin(struct branch *branch, int32_t token)
{
    return !branch->bound || nib_token_mask_step(&branch->mask, branch->automaton.first, token) >= 0;
}

// Goes on with the branches that the token belongs to; when it belongs to none, the one that has begun takes it as text.
// What belongs nowhere is the prompt's own, as an empty thought that it closes.
static void accept_begin(struct nib_guide *guide, int32_t token)
{
    size_t left = 0, begun = guide->count, last = 0;
    for (size_t b = 0; b < guide->count; b++) {
        const struct nib_token_list *begin = &guide->branches[b].begin;
        if (guide->possible[b] && guide->at == begin->count && may_begin(&guide->branches[b], token))
            begun = b;
        guide->possible[b] &= guide->at < begin->count && begin->ids[guide->at] == token;
        if (guide->possible[b]) {
            left++;
            last = b;
        }
    }
    guide->at++;
    if (left == 1 && guide->branches[last].begin.count == guide->at) {
        begin_text(guide, last);
    } else if (left == 0 && begun < guide->count) {
        begin_text(guide, begun);
        accept_text(guide, token);
    } else if (left == 0) {
        begin_message(guide);
    }
}

void nib_guide_accept(void *context, int32_t token)
{
    struct nib_guide *guide = context;
    switch (guide->place) {
    case IN_BEGIN:
        accept_begin(guide, token);
        break;
    case IN_TEXT:
        accept_text(guide, token);
        break;
    case IN_END:
        accept_end(guide, guide->at + 1);
        break;
    case IN_NEXT:
        if (++guide->at == guide->branches[guide->current].next.count)
            begin_message(guide);
        break;
    }
}
