// One answer at a time: a prompt through the engine, with a progress bar, Ctrl-C and the clock.
#ifndef NIB_CLI_GENERATE_H
#define NIB_CLI_GENERATE_H

#include "cli/session.h"

struct generation {
    // What to do.
    const int32_t *prompt; /* [n_prompt] */
    int32_t n_prompt;
    int32_t max_tokens; // 0: as many as the context holds
    struct nib_sampling sampling;
    float repetition_penalty;
    int32_t top_logprobs; // as in nib_request
    // Gets every token but the stop token; false: that is enough, finish with NIB_FINISH_STOP.
    bool (*on_token)(void *context, const struct nib_event *event);
    void *context;
    // What came of it.
    enum nib_finish finish;
    int32_t stop_token; // -1: none
    int32_t generated;  // tokens, the stop token included
    double prefill_seconds, decode_seconds;
};

nib_status generate(struct session *session, struct generation *generation, struct nib_error *err);

double prefill_rate(const struct generation *generation); // tokens per second; 0 when nothing was timed
double decode_rate(const struct generation *generation);  // of the tokens behind the first

const char *finish_name(enum nib_finish finish); // "stop", "length", …

#endif
