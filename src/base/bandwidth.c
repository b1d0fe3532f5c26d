#include "base/bandwidth.h"

#include <stdint.h>
#include <string.h>
#include <time.h>

#define STREAMS 4
#define LINE 64
#define AHEAD 2048 // bytes

double nib_clock(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

static uint64_t read_streams(const uint8_t *data, size_t bytes)
{
    size_t stretch = bytes / STREAMS / LINE * LINE;
    uint64_t sum[8] = {0};
    for (size_t at = 0; at < stretch; at += LINE) {
        for (size_t s = 0; s < STREAMS; s++) {
            const uint8_t *line = data + s * stretch + at;
            __builtin_prefetch(line + AHEAD, 0, 2); // into L2
            uint64_t words[8];
            memcpy(words, line, sizeof words);
            for (int i = 0; i < 8; i++)
                sum[i] ^= words[i];
        }
    }
    return sum[0] ^ sum[1] ^ sum[2] ^ sum[3] ^ sum[4] ^ sum[5] ^ sum[6] ^ sum[7];
}

double nib_bandwidth_read(const void *data, size_t bytes, int threads)
{
    size_t stretch = bytes / (size_t)threads / LINE * LINE;
    uint64_t sum = 0;
    double start = nib_clock();
#pragma omp parallel for num_threads(threads) reduction(^ : sum) schedule(static)
    for (int i = 0; i < threads; i++)
        sum ^= read_streams((const uint8_t *)data + (size_t)i * stretch, stretch);
    double seconds = nib_clock() - start;
    __asm__ volatile("" : : "r"(sum)); // the reads must happen
    return (double)(stretch * (size_t)threads) / seconds;
}
