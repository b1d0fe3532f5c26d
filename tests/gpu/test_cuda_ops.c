// Every operation of the cuda device against the reference, over odd shapes and ragged batches. Ends with one summary line.
// Exit code 77: no GPU that the kernels are for, nothing was run.
//
// usage: test_cuda_ops [--quick]    --quick: fewer shapes, for runs under compute-sanitizer
#include <stdio.h>
#include <string.h>

#include "device_pair.h"

static const struct nib_scratch_query query = {.max_width = 8200,
                                               .n_experts = 128,
                                               .top_k = 8,
                                               .hidden = 2880,
                                               .intermediate = 2880,
                                               .n_heads = 128,
                                               .head_dim = 576};

int main(int argc, char **argv)
{
    uint64_t bytes;
    struct nib_error err;
    quick = argc > 1 && strcmp(argv[1], "--quick") == 0;
    if (nib_cuda_ops()->memory_available(0, &bytes, &err)) {
        printf("test_cuda_ops: not run: %s\n", err.message);
        return 77;
    }
    devices[REF] = test_device_open(nib_ref_ops(), 4, MAX_TOKENS, &query);
    devices[CUDA] = test_device_open(nib_cuda_ops(), 4, MAX_TOKENS, &query);
    check_rows_and_products();
    check_attentions();
    check_experts();
    check_layers();
    check_drawing();
    for (int d = REF; d < DEVICES; d++)
        test_device_close(&devices[d]);
    printf("test_cuda_ops: %d checks, %d failed, worst at %.2f of its bound\n", checks, failures, worst);
    return failures > 0;
}
