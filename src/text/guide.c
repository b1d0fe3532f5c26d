#include "text/guide.h"

#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "text/harmony.h"
#include "text/json_schema.h"

#define MAX_BRANCHES 1100

struct branch {
    struct nib_token_list header; // up to the beginning of the text
    bool goes_on, call;
    bool bound;
    int32_t rule; // when bound
    struct nib_automaton automaton;
    struct nib_token_mask mask;
};

enum place {
    IN_START,  // between messages: the next token is start[at]
    IN_HEADER, // tokens before `at` were those of every branch that is possible
    IN_TEXT,
};

struct nib_guide {
    const struct nib_chat *chat;
    const struct nib_mask_vocabulary *vocabulary;
    struct nib_rules rules;
    struct branch *branches; /* [count] */
    size_t count;
    bool *possible;              /* [count] */
    struct nib_token_list start; // what stands between a message's end and the next header
    enum place place;
    size_t at, current; // current: branch of the text
    int32_t config;     // of its automaton
    uint32_t *bits;     /* [words] scratch */
};

static void put_bit(struct nib_guide *guide, int32_t token)
{
    if (token >= 0 && token / 32 < nib_mask_words(guide->vocabulary))
        guide->bits[token / 32] |= 1u << (token % 32);
}

static nib_status encode_header(const struct nib_guide *guide, const struct nib_tokenizer *tokenizer,
                                const struct nib_message *header, struct nib_token_list *list,
                                struct nib_error *err)
{
    struct nib_conversation nothing = {.reply = header};
    struct nib_pieces pieces = {0};
    nib_status status = nib_chat_render(guide->chat, &nothing, &pieces, err);
    if (!status)
        status = nib_pieces_encode(&pieces, header ? pieces.reply_from : 0, tokenizer, list, err);
    nib_pieces_free(&pieces);
    return status;
}

static nib_status init_branch(struct nib_guide *guide, const struct nib_tokenizer *tokenizer,
                              const struct nib_guide_branch *wanted, struct branch *branch, struct nib_error *err)
{
    branch->goes_on = wanted->goes_on;
    branch->call = wanted->header.recipient.size > 0;
    nib_status status = encode_header(guide, tokenizer, &wanted->header, &branch->header, err);
    if (status || !wanted->schema)
        return status;
    branch->bound = true;
    return nib_json_schema_compile(wanted->schema, &guide->rules, &branch->rule, err);
}

// Automatons read the rules, so they come when all rules are there.
static nib_status start_branch(struct nib_guide *guide, struct branch *branch, struct nib_error *err)
{
    nib_status status = nib_automaton_init(&branch->automaton, &guide->rules, branch->rule, err);
    if (!status && branch->automaton.first < 0)
        return nib_fail(err, NIB_ERR_ARGUMENT, "no JSON satisfies the schema");
    return status ? status : nib_token_mask_init(&branch->mask, guide->vocabulary, &branch->automaton, err);
}

static void begin_header(struct nib_guide *guide)
{
    guide->place = IN_HEADER;
    guide->at = 0;
    for (size_t b = 0; b < guide->count; b++)
        guide->possible[b] = true;
}

nib_status nib_guide_create(const struct nib_chat *chat, const struct nib_tokenizer *tokenizer,
                            const struct nib_mask_vocabulary *vocabulary, const struct nib_guide_branch *branches,
                            size_t count, struct nib_guide **guide, struct nib_error *err)
{
    if (chat->format != &nib_chat_harmony)
        return nib_fail(err, NIB_ERR_UNSUPPORTED,
                        "answers in a demanded form need harmony, and this model's format is %s",
                        chat->format->name);
    if (count > MAX_BRANCHES)
        return nib_fail(err, NIB_ERR_LIMIT, "more than %d kinds of messages", MAX_BRANCHES);
    struct nib_guide *g = calloc(1, sizeof *g);
    if (!g)
        return nib_fail_memory(err, sizeof *g, "a guide");
    g->chat = chat;
    g->vocabulary = vocabulary;
    g->branches = calloc(count, sizeof *g->branches);
    g->possible = calloc(count, sizeof *g->possible);
    g->bits = calloc((size_t)nib_mask_words(vocabulary), sizeof *g->bits);
    nib_status status = g->branches && g->possible && g->bits
                            ? encode_header(g, tokenizer, NULL, &g->start, err)
                            : nib_fail_memory(err, count * sizeof *g->branches, "a guide");
    for (; !status && g->count < count; g->count++)
        status = init_branch(g, tokenizer, &branches[g->count], &g->branches[g->count], err);
    for (size_t b = 0; !status && b < g->count; b++)
        if (g->branches[b].bound)
            status = start_branch(g, &g->branches[b], err);
    if (status) {
        nib_guide_free(g);
        return status;
    }
    begin_header(g);
    *guide = g;
    return NIB_OK;
}

void nib_guide_free(struct nib_guide *guide)
{
    if (!guide)
        return;
    for (size_t b = 0; b < guide->count; b++) {
        nib_token_list_free(&guide->branches[b].header);
        nib_automaton_free(&guide->branches[b].automaton);
        nib_token_mask_free(&guide->branches[b].mask);
    }
    nib_rules_free(&guide->rules);
    nib_token_list_free(&guide->start);
    free(guide->branches);
    free(guide->possible);
    free(guide->bits);
    free(guide);
}

static int32_t end_token(const struct nib_guide *guide, const struct branch *branch)
{
    enum harmony_control end = branch->call ? HARMONY_CALL : branch->goes_on ? HARMONY_END : HARMONY_RETURN;
    return guide->chat->controls[end];
}

static void mask_text(struct nib_guide *guide)
{
    struct branch *branch = &guide->branches[guide->current];
    const uint32_t *mask =
        branch->bound ? nib_token_mask_at(&branch->mask, guide->config) : nib_mask_ordinary(guide->vocabulary);
    if (mask)
        memcpy(guide->bits, mask, (size_t)nib_mask_words(guide->vocabulary) * sizeof *guide->bits);
    if (!branch->bound || branch->automaton.configs[guide->config]->accepting)
        put_bit(guide, end_token(guide, branch));
}

const uint32_t *nib_guide_mask(void *context)
{
    struct nib_guide *guide = context;
    memset(guide->bits, 0, (size_t)nib_mask_words(guide->vocabulary) * sizeof *guide->bits);
    if (guide->place == IN_START)
        put_bit(guide, guide->start.ids[guide->at]);
    else if (guide->place == IN_TEXT)
        mask_text(guide);
    else
        for (size_t b = 0; b < guide->count; b++)
            if (guide->possible[b])
                put_bit(guide, guide->branches[b].header.ids[guide->at]);
    return guide->bits;
}

static void accept_header(struct nib_guide *guide, int32_t token)
{
    for (size_t b = 0; b < guide->count; b++)
        guide->possible[b] &= guide->branches[b].header.ids[guide->at] == token;
    guide->at++;
    for (size_t b = 0; b < guide->count; b++)
        if (guide->possible[b] && guide->branches[b].header.count == guide->at) {
            guide->place = IN_TEXT;
            guide->current = b;
            guide->config = guide->branches[b].automaton.first;
            return;
        }
}

void nib_guide_accept(void *context, int32_t token)
{
    struct nib_guide *guide = context;
    switch (guide->place) {
    case IN_START:
        if (++guide->at == guide->start.count)
            begin_header(guide);
        break;
    case IN_HEADER:
        accept_header(guide, token);
        break;
    case IN_TEXT:
        if (token == end_token(guide, &guide->branches[guide->current])) {
            guide->place = IN_START; // unless the answer ends here
            guide->at = 0;
        } else if (guide->branches[guide->current].bound) {
            int32_t next = nib_token_mask_step(&guide->branches[guide->current].mask, guide->config, token);
            guide->config = next >= 0 ? next : guide->config; // only what the mask allowed comes here
        }
        break;
    }
}
