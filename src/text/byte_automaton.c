#include "text/byte_automaton.h"

#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "text/writer.h"

#define MAX_DEPTH 200     // calls within calls: how deep a text may nest
#define MAX_CLOSURE 16384 // threads looked at between two bytes; the ways of all others are closed

// ---- building ----

static bool grow(struct nib_rules *rules, void *list /* pointer to the array's pointer */, size_t *capacity,
                 size_t count, size_t item)
{
    void *items;
    memcpy(&items, list, sizeof items);
    if (rules->failed || !nib_grow(&items, capacity, count, item)) {
        rules->failed = true;
        return false;
    }
    memcpy(list, &items, sizeof items);
    return true;
}

int32_t nib_rules_state(struct nib_rules *rules)
{
    rules->failed |= rules->n_states >= NIB_MAX_RULE_STATES;
    if (!grow(rules, &rules->states, &rules->states_capacity, rules->n_states, sizeof *rules->states))
        return 0;
    rules->states[rules->n_states] = (struct nib_rule_state){.edges = -1, .jumps = -1, .room = -1, .close = -1};
    return (int32_t)rules->n_states++;
}

void nib_rules_bytes(struct nib_rules *rules, int32_t from, int low, int high, int32_t to)
{
    if (!grow(rules, &rules->edges, &rules->edges_capacity, rules->n_edges, sizeof *rules->edges))
        return;
    rules->edges[rules->n_edges] =
        (struct nib_rule_edge){to, rules->states[from].edges, (uint8_t)low, (uint8_t)high};
    rules->states[from].edges = (int32_t)rules->n_edges++;
}

void nib_rules_call(struct nib_rules *rules, int32_t from, int32_t rule, int32_t to)
{
    if (!grow(rules, &rules->jumps, &rules->jumps_capacity, rules->n_jumps, sizeof *rules->jumps))
        return;
    rules->jumps[rules->n_jumps] = (struct nib_rule_jump){to, rules->states[from].jumps, rule};
    rules->states[from].jumps = (int32_t)rules->n_jumps++;
}

void nib_rules_skip(struct nib_rules *rules, int32_t from, int32_t to)
{
    nib_rules_call(rules, from, -1, to);
}

int32_t nib_rules_literal(struct nib_rules *rules, int32_t from, const char *bytes, size_t size)
{
    for (size_t i = 0; i < size; i++) {
        int32_t to = nib_rules_state(rules);
        nib_rules_bytes(rules, from, (unsigned char)bytes[i], (unsigned char)bytes[i], to);
        from = to;
    }
    return from;
}

void nib_rules_free(struct nib_rules *rules)
{
    free(rules->states);
    free(rules->edges);
    free(rules->jumps);
    *rules = (struct nib_rules){0};
}

// ---- hash tables of indices ----

static uint64_t mix(uint64_t hash, uint64_t value)
{
    hash = (hash ^ value) * 0x9e3779b97f4a7c15u;
    return hash ^ (hash >> 29);
}

static uint64_t hash_frame(int32_t state, int32_t parent)
{
    return mix(mix(1, (uint32_t)state), (uint32_t)parent);
}

static uint64_t hash_threads(const struct nib_thread *threads /* [n] */, size_t n)
{
    uint64_t hash = n;
    for (size_t i = 0; i < n; i++)
        hash = mix(mix(hash, (uint32_t)threads[i].state), (uint32_t)threads[i].frame);
    return hash;
}

static uint64_t hash_of(const struct nib_automaton *a, bool frames, int32_t index)
{
    if (frames)
        return hash_frame(a->frames[index].state, a->frames[index].parent);
    return hash_threads(a->configs[index]->threads, (size_t)a->configs[index]->n_threads);
}

// Makes room for one more entry.
static bool prepare_table(struct nib_automaton *a, bool frames)
{
    int32_t **table = frames ? &a->frame_table : &a->config_table;
    size_t *size = frames ? &a->frame_table_size : &a->config_table_size;
    size_t count = frames ? a->n_frames : a->n_configs;
    if (2 * (count + 1) < *size)
        return true;
    size_t larger = *size ? *size * 2 : 64;
    int32_t *fresh = malloc(larger * sizeof *fresh);
    if (!fresh)
        return false;
    memset(fresh, 0xff, larger * sizeof *fresh);
    for (size_t i = 0; i < count; i++) {
        size_t slot = hash_of(a, frames, (int32_t)i) & (larger - 1);
        while (fresh[slot] >= 0)
            slot = (slot + 1) & (larger - 1);
        fresh[slot] = (int32_t)i;
    }
    free(*table);
    *table = fresh;
    *size = larger;
    return true;
}

static bool grow_list(struct nib_automaton *a, void *list, size_t *capacity, size_t count, size_t item)
{
    void *items;
    memcpy(&items, list, sizeof items);
    bool grown = nib_grow(&items, capacity, count, item);
    memcpy(list, &items, sizeof items);
    a->failed |= !grown;
    return grown;
}

static int32_t intern_frame(struct nib_automaton *a, int32_t state, int32_t parent)
{
    if (!prepare_table(a, true)) {
        a->failed = true;
        return -1;
    }
    size_t slot = hash_frame(state, parent) & (a->frame_table_size - 1);
    for (; a->frame_table[slot] >= 0; slot = (slot + 1) & (a->frame_table_size - 1)) {
        const struct nib_frame *frame = &a->frames[a->frame_table[slot]];
        if (frame->state == state && frame->parent == parent)
            return a->frame_table[slot];
    }
    if (!grow_list(a, &a->frames, &a->frames_capacity, a->n_frames, sizeof *a->frames))
        return -1;
    int32_t depth = parent < 0 ? 1 : a->frames[parent].depth + 1;
    a->frames[a->n_frames] = (struct nib_frame){state, parent, depth};
    a->frame_table[slot] = (int32_t)a->n_frames;
    return (int32_t)a->n_frames++;
}

static struct nib_config *make_config(const struct nib_thread *threads /* [n] */, size_t n)
{
    struct nib_config *config = malloc(sizeof *config);
    struct nib_thread *copy = malloc((n + 1) * sizeof *copy);
    if (!config || !copy) {
        free(config);
        free(copy);
        return NULL;
    }
    memcpy(copy, threads, n * sizeof *copy);
    config->threads = copy;
    config->n_threads = (int32_t)n;
    config->accepting = false;
    for (int i = 0; i < 256; i++)
        config->next[i] = -2;
    return config;
}

static int32_t intern_config(struct nib_automaton *a, const struct nib_thread *threads /* [n] */, size_t n)
{
    if (!prepare_table(a, false)) {
        a->failed = true;
        return -1;
    }
    size_t slot = hash_threads(threads, n) & (a->config_table_size - 1);
    for (; a->config_table[slot] >= 0; slot = (slot + 1) & (a->config_table_size - 1)) {
        const struct nib_config *config = a->configs[a->config_table[slot]];
        if ((size_t)config->n_threads == n && memcmp(config->threads, threads, n * sizeof *threads) == 0)
            return a->config_table[slot];
    }
    if (!grow_list(a, &a->configs, &a->configs_capacity, a->n_configs, sizeof(void *)))
        return -1;
    struct nib_config *config = make_config(threads, n);
    if (!config) {
        a->failed = true;
        return -1;
    }
    for (size_t i = 0; i < n; i++)
        config->accepting |= threads[i].frame < 0 && a->rules->states[threads[i].state].final;
    a->configs[a->n_configs] = config;
    a->config_table[slot] = (int32_t)a->n_configs;
    return (int32_t)a->n_configs++;
}

// ---- closures ----

static void begin_closure(struct nib_automaton *a)
{
    a->n_open = 0;
    if (++a->closure == 0) { // slots of 2^32 closures ago would look like its own
        memset(a->open_table, 0, a->open_table_size * sizeof *a->open_table);
        a->closure = 1;
    }
}

// The slot of a thread, or the free one where it belongs.
static struct nib_open_slot *find_open(const struct nib_automaton *a, int32_t state, int32_t frame)
{
    size_t at = hash_frame(state, frame) & (a->open_table_size - 1);
    for (;; at = (at + 1) & (a->open_table_size - 1)) {
        struct nib_open_slot *slot = &a->open_table[at];
        if (slot->closure != a->closure)
            return slot;
        if (a->open[slot->index].state == state && a->open[slot->index].frame == frame)
            return slot;
    }
}

// Room for one more open thread, in the list and in a table that is at most half full.
static bool prepare_open(struct nib_automaton *a)
{
    if (!grow_list(a, &a->open, &a->open_capacity, a->n_open, sizeof *a->open))
        return false;
    if (2 * (a->n_open + 1) <= a->open_table_size)
        return true;
    size_t larger = a->open_table_size ? a->open_table_size * 2 : 64;
    struct nib_open_slot *fresh = calloc(larger, sizeof *fresh);
    if (!fresh) {
        a->failed = true;
        return false;
    }
    free(a->open_table);
    a->open_table = fresh;
    a->open_table_size = larger;
    for (size_t i = 0; i < a->n_open; i++)
        *find_open(a, a->open[i].state, a->open[i].frame) = (struct nib_open_slot){a->closure, (int32_t)i};
    return true;
}

static void open_thread(struct nib_automaton *a, int32_t state, int32_t frame)
{
    if (!prepare_open(a))
        return;
    struct nib_open_slot *slot = find_open(a, state, frame);
    if (slot->closure == a->closure)
        return;
    if (a->n_open == MAX_CLOSURE) {
        a->cut = true;
        return;
    }
    *slot = (struct nib_open_slot){a->closure, (int32_t)a->n_open};
    a->open[a->n_open++] = (struct nib_thread){state, frame};
}

static int compare_threads(const void *left, const void *right)
{
    const struct nib_thread *x = left, *y = right;
    if (x->state != y->state)
        return x->state < y->state ? -1 : 1;
    return (x->frame > y->frame) - (x->frame < y->frame);
}

// From the open threads to everything reachable without a byte; those that can read one or end are the configuration.
static int32_t close_threads(struct nib_automaton *a)
{
    const struct nib_rules *rules = a->rules;
    for (size_t i = 0; i < a->n_open; i++) {
        struct nib_thread thread = a->open[i];
        const struct nib_rule_state *state = &rules->states[thread.state];
        if (state->final && thread.frame >= 0)
            open_thread(a, a->frames[thread.frame].state, a->frames[thread.frame].parent);
        for (int32_t j = state->jumps; j >= 0; j = rules->jumps[j].next) {
            const struct nib_rule_jump *jump = &rules->jumps[j];
            int32_t depth = thread.frame < 0 ? 0 : a->frames[thread.frame].depth;
            if (jump->rule < 0)
                open_thread(a, jump->to, thread.frame);
            else if (depth < MAX_DEPTH) {
                int32_t frame = intern_frame(a, jump->to, thread.frame);
                if (frame >= 0)
                    open_thread(a, jump->rule, frame);
            }
        }
    }
    size_t kept = 0;
    for (size_t i = 0; i < a->n_open; i++) {
        const struct nib_rule_state *state = &rules->states[a->open[i].state];
        if (state->edges >= 0 || (state->final && a->open[i].frame < 0))
            a->open[kept++] = a->open[i];
    }
    if (kept == 0)
        return -1;
    qsort(a->open, kept, sizeof *a->open, compare_threads);
    return intern_config(a, a->open, kept);
}

int32_t nib_automaton_at(struct nib_automaton *a, int32_t state, int32_t frame)
{
    begin_closure(a);
    open_thread(a, state, frame);
    return close_threads(a);
}

static int32_t find_next(struct nib_automaton *a, int32_t config, uint8_t byte)
{
    const struct nib_rules *rules = a->rules;
    begin_closure(a);
    for (int32_t t = 0; t < a->configs[config]->n_threads; t++) {
        struct nib_thread thread = a->configs[config]->threads[t];
        for (int32_t e = rules->states[thread.state].edges; e >= 0; e = rules->edges[e].next)
            if (byte >= rules->edges[e].low && byte <= rules->edges[e].high)
                open_thread(a, rules->edges[e].to, thread.frame);
    }
    return a->n_open ? close_threads(a) : -1;
}

int32_t nib_automaton_step(struct nib_automaton *a, int32_t config, uint8_t byte)
{
    int32_t next = a->configs[config]->next[byte];
    if (next == -2)
        next = a->configs[config]->next[byte] = find_next(a, config, byte);
    return next;
}

nib_status nib_automaton_init(struct nib_automaton *automaton, const struct nib_rules *rules, int32_t rule,
                              struct nib_error *err)
{
    *automaton = (struct nib_automaton){.rules = rules};
    automaton->first = nib_automaton_at(automaton, rule, -1);
    if (automaton->cut)
        return nib_fail(err, NIB_ERR_UNSUPPORTED, "a text may begin in more than %d ways", MAX_CLOSURE);
    return automaton->failed ? nib_fail_memory(err, 0, "an automaton") : NIB_OK;
}

void nib_automaton_free(struct nib_automaton *automaton)
{
    for (size_t i = 0; i < automaton->n_configs; i++) {
        free(automaton->configs[i]->threads);
        free(automaton->configs[i]);
    }
    free(automaton->configs);
    free(automaton->frames);
    free(automaton->config_table);
    free(automaton->frame_table);
    free(automaton->open);
    free(automaton->open_table);
    *automaton = (struct nib_automaton){0};
}
