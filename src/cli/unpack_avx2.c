#include "cli/unpack_kernels.h"

#include <immintrin.h>
#include <string.h>

#include "nibble/mx.h"

// bf16 of 32 codes in order, before the scale: the table gives high and low bytes.
static void decode_codes(__m128i bytes, __m256i *first, __m256i *second)
{
    const __m128i high = _mm_setr_epi8(0, 0x3f, 0x3f, 0x3f, 0x40, 0x40, 0x40, 0x40, 0, (char)0xbf, (char)0xbf,
                                       (char)0xbf, (char)0xc0, (char)0xc0, (char)0xc0, (char)0xc0);
    const __m128i low = _mm_setr_epi8(0, 0, (char)0x80, (char)0xc0, 0, 0x40, (char)0x80, (char)0xc0, 0, 0,
                                      (char)0x80, (char)0xc0, 0, 0x40, (char)0x80, (char)0xc0);
    const __m128i nibble = _mm_set1_epi8(15);
    __m128i even = _mm_and_si128(bytes, nibble), odd = _mm_and_si128(_mm_srli_epi16(bytes, 4), nibble);
    __m128i codes[2] = {_mm_unpacklo_epi8(even, odd), _mm_unpackhi_epi8(even, odd)};
    __m256i words[2];
    for (int i = 0; i < 2; i++) {
        __m128i h = _mm_shuffle_epi8(high, codes[i]), l = _mm_shuffle_epi8(low, codes[i]);
        words[i] = _mm256_set_m128i(_mm_unpackhi_epi8(l, h), _mm_unpacklo_epi8(l, h));
    }
    *first = words[0];
    *second = words[1];
}

static void unpack_block_plainly(const uint8_t *packed, uint8_t scale, uint16_t *row)
{
    float values[NIB_MX_BLOCK];
    nib_mxfp4_decode_row(packed, &scale, NIB_MX_BLOCK, values);
    for (int i = 0; i < NIB_MX_BLOCK; i++)
        row[i] = nib_bf16_from_f32(values[i]);
}

void unpack_row_avx2(const uint8_t *packed, const uint8_t *scales, int64_t n, uint16_t *row)
{
    for (int64_t block = 0; block < n / NIB_MX_BLOCK; block++) {
        uint16_t *out = row + block * NIB_MX_BLOCK;
        if (scales[block] < 5 || scales[block] > 250) { // the exponent would leave its field
            unpack_block_plainly(packed + block * 16, scales[block], out);
            continue;
        }
        __m256i words[2], shift = _mm256_set1_epi16((short)((scales[block] - 127) * 128));
        decode_codes(_mm_loadu_si128((const __m128i *)(const void *)(packed + block * 16)), &words[0], &words[1]);
        for (int i = 0; i < 2; i++) {
            __m256i zero = _mm256_cmpeq_epi16(words[i], _mm256_setzero_si256());
            __m256i scaled = _mm256_add_epi16(words[i], _mm256_andnot_si256(zero, shift));
            _mm256_storeu_si256((__m256i *)(void *)(out + 16 * i), scaled);
        }
    }
}

static __m256 load_bf16(const uint16_t *p)
{
    __m128i words = _mm_loadu_si128((const __m128i *)(const void *)p);
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(words), 16));
}

static float sum_lanes(__m256 v)
{
    float lanes[8], sum = 0;
    _mm256_storeu_ps(lanes, v);
    for (int i = 0; i < 8; i++)
        sum += lanes[i];
    return sum;
}

void unpack_gemm_avx2(const uint16_t *a, const uint16_t *b, uint16_t *c, int64_t m, int64_t n, int64_t k,
                      int threads)
{
#pragma omp parallel for num_threads(threads) schedule(static)
    for (int64_t j = 0; j < n; j++) {
        for (int64_t first = 0; first < m; first += 8) {
            int tile = m - first < 8 ? (int)(m - first) : 8;
            __m256 sum[8];
            for (int t = 0; t < tile; t++)
                sum[t] = _mm256_setzero_ps();
            for (int64_t i = 0; i < k; i += 8) {
                __m256 weight = load_bf16(b + j * k + i);
                for (int t = 0; t < tile; t++)
                    sum[t] = _mm256_fmadd_ps(weight, load_bf16(a + (first + t) * k + i), sum[t]);
            }
            for (int t = 0; t < tile; t++)
                c[(first + t) * n + j] = nib_bf16_from_f32(sum_lanes(sum[t]));
        }
    }
}
