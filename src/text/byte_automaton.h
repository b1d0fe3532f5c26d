// A byte-level pushdown automaton: what a text may still become, byte by byte. It is built as rules that read bytes and
// call each other (so recursive schemas are finite), and run as a deterministic automaton whose states come into being
// when they are first reached.
#ifndef NIB_TEXT_BYTE_AUTOMATON_H
#define NIB_TEXT_BYTE_AUTOMATON_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "nibble/status.h"

// ---- building ----

struct nib_rule_state {
    int32_t edges, jumps; // first of each list, -1: none
    bool final;           // the rule may end here
    // Between two characters of a JSON string: how many more must and may come (room -1: this is no such place), and
    // the state behind the closing quote.
    int32_t need, room, close;
};

struct nib_rule_edge {
    int32_t to, next;
    uint8_t low, high; // bytes
};

struct nib_rule_jump {
    int32_t to, next;
    int32_t rule; // first state of a rule to run before; -1: none
};

#define NIB_UNLIMITED INT32_MAX // room

// Start from {0}. When memory or the limit on states runs out `failed` is set and building goes on without effect.
struct nib_rules {
    struct nib_rule_state *states; /* [n_states] */
    struct nib_rule_edge *edges;   /* [n_edges] */
    struct nib_rule_jump *jumps;   /* [n_jumps] */
    size_t n_states, n_edges, n_jumps, states_capacity, edges_capacity, jumps_capacity;
    bool failed;
};

#define NIB_MAX_RULE_STATES 400000

int32_t nib_rules_state(struct nib_rules *rules);
void nib_rules_bytes(struct nib_rules *rules, int32_t from, int low, int high, int32_t to);
void nib_rules_skip(struct nib_rules *rules, int32_t from, int32_t to);
void nib_rules_call(struct nib_rules *rules, int32_t from, int32_t rule, int32_t to);
// The state behind the bytes.
int32_t nib_rules_literal(struct nib_rules *rules, int32_t from, const char *bytes /* [size] */, size_t size);
void nib_rules_free(struct nib_rules *rules);

// ---- running ----

// A place in a rule, and the chain of places to return to.
struct nib_thread {
    int32_t state, frame; // frame -1: none
};

struct nib_config {
    struct nib_thread *threads; /* [n_threads] in order */
    int32_t n_threads;
    bool accepting;    // the text may end here
    int32_t next[256]; // configuration behind a byte; -1: none, -2: not known yet
};

struct nib_frame {
    int32_t state, parent, depth;
};

struct nib_open_slot {
    uint32_t closure; // that it belongs to; another: free
    int32_t index;    // in `open`
};

struct nib_automaton {
    const struct nib_rules *rules; // borrowed
    int32_t first;                 // configuration at the start; -1 when out of memory
    struct nib_config **configs;   /* [n_configs] */
    struct nib_frame *frames;      /* [n_frames] */
    size_t n_configs, n_frames, configs_capacity, frames_capacity;
    int32_t *config_table, *frame_table; // hash tables of indices, -1: empty
    size_t config_table_size, frame_table_size;
    struct nib_thread *open; // scratch of closures
    size_t n_open, open_capacity;
    struct nib_open_slot *open_table; // where in `open` a thread is
    size_t open_table_size;
    uint32_t closure; // the one at work
    bool cut;         // one had more threads than are looked at
    bool failed;      // memory
};

// NIB_ERR_UNSUPPORTED where a text may begin in too many ways.
nib_status nib_automaton_init(struct nib_automaton *automaton, const struct nib_rules *rules, int32_t rule,
                              struct nib_error *err);
void nib_automaton_free(struct nib_automaton *automaton);

// The configuration behind `byte`, or -1 when it may not follow.
int32_t nib_automaton_step(struct nib_automaton *automaton, int32_t config, uint8_t byte);

// The configuration of a single thread.
int32_t nib_automaton_at(struct nib_automaton *automaton, int32_t state, int32_t frame);

#endif
