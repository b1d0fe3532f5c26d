#include "cli/talk.h"

#include <stdio.h>
#include <stdlib.h>

nib_status talk_answer(struct talk *talk, const struct nib_token_list *prompt, size_t begun, struct answer *answer,
                       struct generation *generation, struct nib_error *err)
{
    *generation = (struct generation){
        .prompt = prompt->ids,
        .n_prompt = (int32_t)prompt->count,
        .max_tokens = (int32_t)talk->max_tokens,
        .sampling = talk->sampling,
        .repetition_penalty = talk->repetition_penalty,
        .top_logprobs = (int32_t)talk->top_logprobs,
        .on_token = answer_token,
        .context = answer,
    };
    nib_status status = answer_begin(answer, talk->session.tokenizer, talk->chat, &talk->stop, &talk->show,
                                     talk->top_logprobs >= 0, err);
    if (!status)
        status = answer_preset(answer, prompt->ids + prompt->count - begun, begun, err);
    if (status)
        return status;
    status = generate(&talk->session, generation, err);
    if (status) {
        show_end(&answer->show);
        return status;
    }
    return answer_end(answer, generation->stop_token, err);
}

static void print_logprobs(const json_t *logprobs)
{
    size_t i, j;
    json_t *entry, *other;
    json_array_foreach(logprobs, i, entry)
    {
        char *text = json_dumps(json_object_get(entry, "token"), JSON_ENCODE_ANY);
        fprintf(stderr, "%8.4f %-16s", json_real_value(json_object_get(entry, "logprob")), text ? text : "");
        free(text);
        json_array_foreach(json_object_get(entry, "top"), j, other)
        {
            text = json_dumps(json_object_get(other, "token"), JSON_ENCODE_ANY);
            fprintf(stderr, "  %s %.4f", text ? text : "", json_real_value(json_object_get(other, "logprob")));
            free(text);
        }
        fputc('\n', stderr);
    }
}

void talk_print_figures(const struct talk *talk, const struct answer *answer, const struct generation *g)
{
    if (talk->quiet)
        return;
    if (answer->logprobs)
        print_logprobs(answer->logprobs);
    const char *why = g->finish == NIB_FINISH_LENGTH      ? " (length limit)"
                      : g->finish == NIB_FINISH_CANCELLED ? " (stopped)"
                                                          : "";
    fprintf(stderr, "%d tokens%s, %.1f tok/s; prompt: %d tokens, %.1f tok/s\n", g->generated, why, decode_rate(g),
            g->n_prompt, prefill_rate(g));
}
