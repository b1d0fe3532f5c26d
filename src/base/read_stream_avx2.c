#include <immintrin.h>

#include "base/read_stream.h"

uint64_t nib_read_stream_avx2(const uint8_t *data, size_t bytes)
{
    size_t stretch = bytes / NIB_READ_STREAMS / NIB_READ_LINE * NIB_READ_LINE;
    __m256i low = _mm256_setzero_si256(), high = _mm256_setzero_si256();
    for (size_t at = 0; at < stretch; at += NIB_READ_LINE) {
        for (size_t s = 0; s < NIB_READ_STREAMS; s++) {
            const uint8_t *line = data + s * stretch + at;
            _mm_prefetch((const char *)line + NIB_READ_AHEAD, _MM_HINT_T1);
            low = _mm256_xor_si256(low, _mm256_loadu_si256((const __m256i *)(const void *)line));
            high = _mm256_xor_si256(high, _mm256_loadu_si256((const __m256i *)(const void *)(line + 32)));
        }
    }
    uint64_t sums[4];
    _mm256_storeu_si256((__m256i *)(void *)sums, _mm256_xor_si256(low, high));
    return sums[0] ^ sums[1] ^ sums[2] ^ sums[3];
}
