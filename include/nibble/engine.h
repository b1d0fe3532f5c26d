// The engine: a checkpoint folder becomes a running model. Sequences keep what the model remembers in a paged cache; a
// step takes a ragged batch of prefill chunks and decodes; a batch turns requests into tokens.
//
// Results are deterministic: the logits of a sequence have the same bits whatever else is in the batch, however its
// prompt was cut into chunks, and for any number of threads; on device "cuda" when opened with `deterministic`, which costs
// speed with many sequences or tokens in a step.
//
// Threads: an engine, its sequences and its batches belong to one thread at a time.
#ifndef NIBBLE_ENGINE_H
#define NIBBLE_ENGINE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "nibble/checkpoint.h"
#include "nibble/layer.h"
#include "nibble/status.h"

#ifdef __cplusplus
extern "C" {
#endif
#pragma GCC visibility push(default)

enum { NIB_CACHE_GROUPS = 8 };

// Layers that look equally far back, and what they keep of a sequence.
struct nib_cache_group {
    int64_t window; // 0: every token
    int64_t layers;
    uint64_t row_bytes;  // of one token in all these layers
    int64_t most_tokens; // kept of a sequence that fills the context, whole pages
};

// What an engine will occupy, known before anything is allocated.
struct nib_memory_plan {
    uint64_t narrowed_bytes; // 8-bit copies of dense matrices, with dense_int8
    uint64_t widened_bytes;  // what dense matrices in FP8, MXFP4 or fp16 grow by on a device that keeps them wider
    uint64_t weights_bytes;  // mapped from the checkpoint; the system may drop and re-read them
    uint64_t cache_bytes;    // the KV pool
    uint64_t cache_row_bytes; // of a token that every full-attention layer keeps
    uint64_t buffer_bytes;    // activations and logits
    uint64_t scratch_bytes;   // the device's own
    uint64_t total_bytes;     // all of the above
    uint64_t available_bytes; // what the system or the control group still grants
    bool exact;               // the precision chosen
    int32_t context;          // tokens one sequence can hold
    int64_t cache_tokens;     // tokens all sequences together can hold
    int32_t max_sequences, max_step_tokens;
    size_t cache_element_bytes; // of an element of a cached row
    int n_cache_groups;
    struct nib_cache_group cache_groups[NIB_CACHE_GROUPS]; /* [n_cache_groups] */
};

// Whether activations and cached rows are rounded to bf16 on their way into a product. Rounding is what makes large models
// fast; a model whose weights take less than NIB_EXACT_BELOW bytes steps in microseconds either way.
enum nib_precision {
    NIB_PRECISION_AUTO, // exact below NIB_EXACT_BELOW bytes of weights, else fast
    NIB_PRECISION_FAST, // bf16 activations and cache, fp32 sums
    NIB_PRECISION_EXACT, // fp32 activations (16 bits in experts on avx2), cached rows as two bf16 parts: twice the cache
};

#define NIB_EXACT_BELOW ((uint64_t)64 << 20)
#define NIB_CACHE_ALL (-1)

struct nib_engine_options {
    const char *device;      // NULL: "cpu"; or "ref", "cuda", "cuda:1"
    int threads;             // 0: as many as the process may use
    int32_t context;         // 0: the model's own, or as much as fits; a number that does not fit is refused
    int32_t max_sequences;   // alive at the same time; 0: 8
    int32_t max_step_tokens; // of one step; 0: 512
    int32_t max_outputs;     // rows of logits of one step; 0: max_sequences
    int64_t cache_tokens;    // what all sequences share; 0: `context`; NIB_CACHE_ALL: what memory is left for
    enum nib_precision precision;
    bool dense_int8;   // dense matrices in 8 bits with a scale a row: faster, and lossy
    bool prefix_cache; // keep pages of past sequences for new ones that begin alike, as long as there is room
    bool force;        // open even if the plan does not fit the memory
    bool
        deterministic; // on devices that would be faster otherwise: results as promised above, whatever is in a step
    bool random_weights; // for benchmarks, where the device can: weights are made up, not read
    // Called while weights are copied to a device, with the bytes just copied; may be NULL.
    void (*on_upload)(void *user, uint64_t bytes);
    // Called once before anything is allocated; may be NULL.
    void (*on_plan)(void *user, const struct nib_memory_plan *plan);
    void *user;
};

struct nib_engine;

// Opens a checkpoint folder. NIB_ERR_MEMORY with the plan's numbers when it would not fit; otherwise what the checkpoint
// or the model found wrong. Closed with nib_engine_close, after its sequences and batches are freed.
nib_status nib_engine_open(const char *path, const struct nib_engine_options *options, struct nib_engine **engine,
                           struct nib_error *err);
void nib_engine_close(struct nib_engine *engine); // NULL is fine

// The plan that nib_engine_open would make. Reads only headers.
nib_status nib_engine_plan(const char *path, const struct nib_engine_options *options,
                           struct nib_memory_plan *plan, struct nib_error *err);

// The same for a model that is not there yet: of this configuration, with weights of so many bytes.
struct nib_config;
nib_status nib_engine_plan_config(const struct nib_config *config, uint64_t weights_bytes,
                                  const struct nib_engine_options *options, struct nib_memory_plan *plan,
                                  struct nib_error *err);

const struct nib_memory_plan *nib_engine_memory(const struct nib_engine *engine);
struct nib_checkpoint *nib_engine_checkpoint(struct nib_engine *engine);
const char *nib_engine_device(const struct nib_engine *engine);
int nib_engine_threads(const struct nib_engine *engine);
int32_t nib_engine_vocab(const struct nib_engine *engine);
int64_t nib_engine_free_pages(const struct nib_engine *engine);   // of all cache groups together
int64_t nib_engine_prefix_pages(const struct nib_engine *engine); // of them, those that the prefix cache keeps

int64_t nib_engine_layers(const struct nib_engine *engine);
void nib_engine_describe_layer(const struct nib_engine *engine, int64_t layer, struct nib_layer_summary *summary);
// Packed and dense weight bytes that decoding one token reads (top_k experts of each layer, attention, head).
uint64_t nib_engine_token_bytes(const struct nib_engine *engine);
// The same for the last step: dense weights and head once, the distinct experts its tokens chose, the cached rows they saw.
uint64_t nib_engine_step_bytes(const struct nib_engine *engine);

// ---- sequences and steps ----

struct nib_sequence;

nib_status nib_sequence_create(struct nib_engine *engine, struct nib_sequence **sequence, struct nib_error *err);
void nib_sequence_free(struct nib_sequence *sequence);            // returns its pages; NULL is fine
int32_t nib_sequence_length(const struct nib_sequence *sequence); // tokens fed so far

// Before anything is fed: takes over from the prefix cache what is known of the beginning of `tokens`, at most n - 1 of
// them. How many those are; feed the rest. The logits have the same bits as without.
int32_t nib_sequence_reuse(struct nib_sequence *sequence, const int32_t *tokens /* [n] */, int32_t n);

enum nib_outputs { NIB_OUTPUTS_NONE, NIB_OUTPUTS_LAST, NIB_OUTPUTS_ALL };

// Tokens to append to one sequence.
struct nib_feed {
    struct nib_sequence *sequence;
    const int32_t *tokens; /* [n_tokens], n_tokens >= 1 */
    int32_t n_tokens;
    enum nib_outputs outputs; // whose logits are wanted
};

// Runs one step over all feeds (each of another sequence). Every token id, length and limit is checked and every page
// reserved before anything is computed: on an error no sequence has changed. NIB_ERR_LIMIT when the pool is full, a
// sequence would outgrow the context, or the step is too large.
nib_status nib_engine_step(struct nib_engine *engine, const struct nib_feed *feeds /* [n] */, int n,
                           struct nib_error *err);

// The logits asked for in the last step, rows in the order of the feeds and, within a feed, of its tokens. The first call
// after a step copies them from the device; not numbers at all if that fails.
const float *nib_engine_logits(struct nib_engine *engine, int64_t row); /* [vocab] */

// For benchmarks: counts n tokens as fed, whose cached rows are whatever lies in their pages. Not for engines with a
// prefix cache.
nib_status nib_sequence_assume(struct nib_sequence *sequence, int32_t n, struct nib_error *err);

// ---- sampling ----

struct nib_sampling {
    float temperature; // 0: greedy (the lowest id among equals)
    int32_t top_k;     // 0: all
    float top_p;       // 1: all; the smallest set of likeliest tokens whose probabilities reach top_p
    float min_p;       // 0: all; tokens at least min_p times as likely as the likeliest
    uint64_t seed;     // the same seed and logits give the same tokens
};

struct nib_token_logprob {
    int32_t token;
    float logprob; // of the model's own distribution, before temperature and cuts
};

#define NIB_MAX_TOP_LOGPROBS 20

// log(sum(exp(logits))), summed in double: minus it, a logit is a log-probability.
double nib_log_sum_exp(const float *logits /* [n] */, int64_t n);

// ---- batches: requests in, tokens out ----

enum nib_finish {
    NIB_FINISH_NOT_YET,
    NIB_FINISH_STOP,      // a stop token, reported as the last token
    NIB_FINISH_LENGTH,    // max_tokens, or the context is full
    NIB_FINISH_CANCELLED, // nib_batch_cancel
    NIB_FINISH_ERROR,     // see the event's error
};

// Added to a token's logit before anything is drawn; at most 1000 either way.
struct nib_logit_bias {
    int32_t token;
    float bias;
};

// Which tokens may come next, as its owner decides. Called from within nib_batch_step, in turn: mask, accept, mask, …;
// masks of different requests by several threads at the same time.
struct nib_constraint {
    void *self;
    // Bit t % 32 of word t / 32: whether token t may come next; NULL: any may. Valid until the next call.
    const uint32_t *(*mask)(void *self);       /* [(vocab + 31) / 32] */
    void (*accept)(void *self, int32_t token); // it was drawn
};

struct nib_request {
    const int32_t *prompt; /* [n_prompt], n_prompt >= 1; copied */
    int32_t n_prompt;
    int32_t max_tokens; // 0: as many as the context holds
    struct nib_sampling sampling;
    const int32_t *stop_tokens; /* [n_stop_tokens], copied */
    int32_t n_stop_tokens;
    int32_t
        top_logprobs; // alternatives to report with each token, up to NIB_MAX_TOP_LOGPROBS; -1: not even its own
    // Of tokens generated already, the logits are lowered: once, and for each time they have been.
    float presence_penalty, frequency_penalty;
    // Positive logits of tokens of the prompt and the answer are divided by it, negative ones multiplied (Keskar et al.
    // 2019, as transformers does it), from 0.01 to 100; 0 and 1: none.
    float repetition_penalty;
    const struct nib_logit_bias *bias; /* [n_bias], copied */
    int32_t n_bias;
    struct nib_constraint constraint; // `self` is borrowed until the request's last event; mask NULL: none
    void *user;                       // handed back with every event
};

// One token of one request, or its end. Valid during the callback.
struct nib_event {
    int64_t request;
    void *user;
    bool has_token; // false when a request ends without one (cancelled, failed)
    struct nib_token_logprob token;
    const struct nib_token_logprob *top; /* [n_top] likeliest first */
    int32_t n_top;
    enum nib_finish finish;
    const struct nib_error *error;
    int32_t prompt_tokens, generated_tokens; // so far
    int32_t cached_tokens;                   // of the prompt, from the prefix cache
};

struct nib_batch;

nib_status nib_batch_create(struct nib_engine *engine,
                            void (*on_event)(void *context, const struct nib_event *event), void *context,
                            struct nib_batch **batch, struct nib_error *err);
void nib_batch_free(struct nib_batch *batch); // cancels what is left, without events; NULL is fine

// Queues a request; `*id` names it. It starts as soon as a sequence and pages are free. NIB_ERR_LIMIT when the prompt
// does not fit the context, NIB_ERR_ARGUMENT for impossible parameters or token ids.
nib_status nib_batch_add(struct nib_batch *batch, const struct nib_request *request, int64_t *id,
                         struct nib_error *err);

// Takes a request's pages at once and ends it: its last event comes from the next nib_batch_step, and until then what the
// request points to (user, constraint) must stay. Unknown ids are ignored. May be called from the event callback.
void nib_batch_cancel(struct nib_batch *batch, int64_t id);

// One step: a token of every answer under way, as pages and rows of logits allow, then a chunk of every prompt that has
// begun; these share what the step has left evenly. Requests begin in order of arrival, when all of the prompt has room;
// one whose prompt begins like another that is being read waits for those pages. `*busy` says whether any request is
// left. Fails only when the engine as a whole cannot go on; a request's own trouble ends that request.
nib_status nib_batch_step(struct nib_batch *batch, bool *busy, struct nib_error *err);

// Prompt tokens of the request that have been computed, for a progress bar; -1 for unknown ids.
int32_t nib_batch_prefilled(const struct nib_batch *batch, int64_t id);

#pragma GCC visibility pop
#ifdef __cplusplus
}
#endif
#endif
