// What `nibble run` has in hand: a model, how to sample from it, and what was said.
#ifndef NIB_CLI_TALK_H
#define NIB_CLI_TALK_H

#include "cli/answer.h"

struct talk {
    struct session session;
    struct nib_chat *chat; // NULL: plain completion
    struct nib_stop_strings stop;
    struct nib_sampling sampling;
    float repetition_penalty;
    struct show show;
    struct dialogue dialogue;
    int64_t max_tokens, top_logprobs; // top_logprobs: -1 for none
    bool quiet;                       // no figures on stderr
};

// Answers `prompt`, whose last `begun` tokens begin the answer, showing it as it comes. `answer` is begun here and freed by the caller, also after a failure.
nib_status talk_answer(struct talk *talk, const struct nib_token_list *prompt, size_t begun, struct answer *answer,
                       struct generation *generation, struct nib_error *err);

// The answer's logprobs as a table, and its length and speed, on stderr.
void talk_print_figures(const struct talk *talk, const struct answer *answer, const struct generation *generation);

// Reads lines from a terminal and answers them until the user leaves. The exit code.
int talk_interactively(struct talk *talk);

#endif
