// Tokens drawn from logits on the device, with the meaning of engine/sampler.h. A cluster of blocks keeps a row's logits in
// shared memory. Cuts and draws look for the token at which a count or a mass is reached, first among bins of a sixteenth
// of a nat, then digit by digit; masses are in fixed point, so that no sum depends on an order.
#ifndef NIB_CUDA_SAMPLE_H
#define NIB_CUDA_SAMPLE_H

#include <cuda_runtime_api.h>
#include <stdbool.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define NIB_CUDA_SAMPLE_VOCAB 400000
#define NIB_CUDA_SAMPLE_TOP 20

// What one row asks for; fields as in struct nib_sampling. The engine draws one random number for each token with a
// temperature.
struct nib_cuda_sample_ask {
    double unit;       // the uniform random number in [0, 1) to draw with
    float temperature; // 0: the likeliest
    float top_p, min_p;
    int32_t top_k;
    int32_t n_top;    // alternatives to report, 0 … NIB_CUDA_SAMPLE_TOP
    int32_t logprobs; // 0: neither logprob nor alternatives are worked out
};

struct nib_cuda_sample_answer {
    int32_t token; // -1: no logit is a number
    float logprob;
    int32_t n_top;                           // fewer than asked for where logits are NaN
    int32_t top_tokens[NIB_CUDA_SAMPLE_TOP]; // likeliest first, of equals the lower id
    float top_logprobs[NIB_CUDA_SAMPLE_TOP];
};

cudaError_t nib_cuda_sample(cudaStream_t stream, int32_t rows, int32_t vocab,
                            const float *logits /* [rows, vocab] */,
                            const struct nib_cuda_sample_ask *asks /* [rows] on the device */,
                            struct nib_cuda_sample_answer *answers /* [rows] on the device */,
                            int32_t *tokens /* [rows] the drawn ids once more, or NULL */);

#ifdef __cplusplus
}
#endif
#endif
