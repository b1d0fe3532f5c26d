#include <immintrin.h>
#include <stdint.h>

#include "convert/rows.h"

static unsigned present_codes(const uint8_t *codes /* [16] */)
{
    const __m128i bit = _mm_setr_epi8(1, 2, 4, 8, 16, 32, 64, -128, 1, 2, 4, 8, 16, 32, 64, -128);
    const __m128i nibble = _mm_set1_epi8(15);
    __m128i packed = _mm_loadu_si128((const __m128i *)codes);
    __m128i seen = _mm_or_si128(_mm_shuffle_epi8(bit, _mm_and_si128(packed, nibble)),
                                _mm_shuffle_epi8(bit, _mm_and_si128(_mm_srli_epi16(packed, 4), nibble)));
    uint64_t word = (uint64_t)(_mm_cvtsi128_si64(seen) | _mm_extract_epi64(seen, 1));
    word |= word >> 32;
    word |= word >> 16;
    return (unsigned)((word | word >> 8) & 255);
}

static void write_block(const uint8_t *codes /* [16] */, const uint8_t *table /* [16] */,
                        uint8_t *bytes /* [32] */)
{
    const __m128i nibble = _mm_set1_epi8(15);
    __m128i packed = _mm_loadu_si128((const __m128i *)codes);
    __m128i single = _mm_loadu_si128((const __m128i *)table);
    __m128i even = _mm_shuffle_epi8(single, _mm_and_si128(packed, nibble));
    __m128i odd = _mm_shuffle_epi8(single, _mm_and_si128(_mm_srli_epi16(packed, 4), nibble));
    _mm_storeu_si128((__m128i *)bytes, _mm_unpacklo_epi8(even, odd));
    _mm_storeu_si128((__m128i *)(bytes + 16), _mm_unpackhi_epi8(even, odd));
}

#include "convert/fp8_row_kernel.h"

enum nib_fp8_verdict nib_fp8_row_avx2(const uint8_t *codes, const uint8_t *scales, int64_t cols, uint8_t *bytes,
                                      float *scale, int *span)
{
    return fp8_row(codes, scales, cols, bytes, scale, span);
}
