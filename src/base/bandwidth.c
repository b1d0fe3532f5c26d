#include "base/bandwidth.h"

#include <string.h>
#include <time.h>

#include "base/cpu_features.h"
#include "base/read_stream.h"

double nib_clock(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

static uint64_t read_stream_any(const uint8_t *data, size_t bytes)
{
    size_t stretch = bytes / NIB_READ_STREAMS / NIB_READ_LINE * NIB_READ_LINE;
    uint64_t sum[NIB_READ_LINE / 8] = {0};
    for (size_t at = 0; at < stretch; at += NIB_READ_LINE) {
        for (size_t s = 0; s < NIB_READ_STREAMS; s++) {
            const uint8_t *line = data + s * stretch + at;
            __builtin_prefetch(line + NIB_READ_AHEAD, 0, 2); // into L2
            uint64_t words[NIB_READ_LINE / 8];
            memcpy(words, line, sizeof words);
            for (int i = 0; i < NIB_READ_LINE / 8; i++)
                sum[i] ^= words[i];
        }
    }
    return sum[0] ^ sum[1] ^ sum[2] ^ sum[3] ^ sum[4] ^ sum[5] ^ sum[6] ^ sum[7];
}

double nib_bandwidth_read(const void *data, size_t bytes, int threads)
{
    uint64_t (*read_stream)(const uint8_t *, size_t) =
        nib_cpu_has(NIB_CPU_AVX2) ? nib_read_stream_avx2 : read_stream_any;
    size_t stretch = bytes / (size_t)threads / NIB_READ_LINE * NIB_READ_LINE;
    uint64_t sum = 0;
    double start = nib_clock();
#pragma omp parallel for num_threads(threads) reduction(^ : sum) schedule(static)
    for (int i = 0; i < threads; i++)
        sum ^= read_stream((const uint8_t *)data + (size_t)i * stretch, stretch);
    double seconds = nib_clock() - start;
    __asm__ volatile("" : : "r"(sum)); // the reads must happen
    return (double)(stretch * (size_t)threads) / seconds;
}
