// Eight fp32 lanes: the vocabulary of vec_avx512.h for AVX2 with FMA and F16C.
#ifndef NIB_CPU_VEC_AVX2_H
#define NIB_CPU_VEC_AVX2_H

#include <immintrin.h>
#include <stdint.h>
#include <string.h>

typedef __m256 vec;
typedef __m256i vec_units; // 32-bit units of two bf16, the earlier in the low half

enum { VEC_LANES = 8 };

static inline vec vec_zero(void)
{
    return _mm256_setzero_ps();
}

static inline vec vec_set(float value)
{
    return _mm256_set1_ps(value);
}

static inline vec vec_load(const float *p /* [8] */)
{
    return _mm256_loadu_ps(p);
}

static inline void vec_store(float *p /* [8] */, vec a)
{
    _mm256_storeu_ps(p, a);
}

static inline vec vec_add(vec a, vec b)
{
    return _mm256_add_ps(a, b);
}

static inline vec vec_sub(vec a, vec b)
{
    return _mm256_sub_ps(a, b);
}

static inline vec vec_mul(vec a, vec b)
{
    return _mm256_mul_ps(a, b);
}

static inline vec vec_fma(vec a, vec b, vec c)
{
    return _mm256_fmadd_ps(a, b, c);
}

// The larger, or b where either is NaN.
static inline vec vec_max(vec a, vec b)
{
    return _mm256_max_ps(a, b);
}

static inline __m256i vec_lane_numbers(void)
{
    return _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
}

// The first n < 8 elements, zero behind them; nothing else is read.
static inline vec vec_load_some(const float *p /* [n] */, int64_t n)
{
    return _mm256_maskload_ps(p, _mm256_cmpgt_epi32(_mm256_set1_epi32((int)n), vec_lane_numbers()));
}

static inline __m128i vec_halves_some(const uint16_t *p /* [n] */, int64_t n)
{
    uint16_t padded[8] = {0};
    memcpy(padded, p, (size_t)n * sizeof *p);
    return _mm_loadu_si128((const __m128i *)padded);
}

static inline vec vec_widen_bf16(__m128i halves)
{
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(halves), 16));
}

static inline vec vec_from_bf16(const uint16_t *p /* [8] */)
{
    return vec_widen_bf16(_mm_loadu_si128((const __m128i *)p));
}

static inline vec vec_from_bf16_some(const uint16_t *p /* [n] */, int64_t n)
{
    return vec_widen_bf16(vec_halves_some(p, n));
}

static inline vec vec_from_i8(const int8_t *p /* [8] */)
{
    return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i *)p)));
}

static inline vec vec_from_i8_some(const int8_t *p /* [n] */, int64_t n)
{
    int8_t padded[8] = {0};
    memcpy(padded, p, (size_t)n);
    return vec_from_i8(padded);
}

// E4M3 codes read as fp16, which has the same bias but for 8: values over VEC_E4M3_UNIT, and NaN for NaN.
#define VEC_E4M3_UNIT 256.0f

static inline vec vec_from_e4m3(const uint8_t *p /* [8] */)
{
    __m128i halves = _mm_slli_epi16(_mm_cvtepi8_epi16(_mm_loadl_epi64((const __m128i *)p)), 7);
    halves = _mm_and_si128(halves, _mm_set1_epi16((short)0xbfff)); // one of the two copies of the sign
    __m128i magnitude = _mm_set1_epi16(0x3f80);
    __m128i nan = _mm_cmpeq_epi16(_mm_and_si128(halves, magnitude), magnitude);
    return _mm256_cvtph_ps(_mm_or_si128(halves, _mm_and_si128(nan, _mm_set1_epi16(0x7c00))));
}

static inline vec vec_from_e4m3_some(const uint8_t *p /* [n] */, int64_t n)
{
    uint8_t padded[8] = {0};
    memcpy(padded, p, (size_t)n);
    return vec_from_e4m3(padded);
}

// E2M1 codes, the low nibble of a byte first.
static inline vec vec_from_e2m1(const uint8_t *p /* [4] */)
{
    int four;
    memcpy(&four, p, sizeof four);
    __m128i bytes = _mm_cvtsi32_si128(four), nibble = _mm_set1_epi8(15);
    __m128i pairs =
        _mm_unpacklo_epi8(_mm_and_si128(bytes, nibble), _mm_and_si128(_mm_srli_epi16(bytes, 4), nibble));
    __m256i codes = _mm256_cvtepu8_epi32(pairs), sign = _mm256_slli_epi32(_mm256_srli_epi32(codes, 3), 31);
    const __m256 magnitudes = _mm256_setr_ps(0, 0.5f, 1, 1.5f, 2, 3, 4, 6); // by the low three bits
    return _mm256_xor_ps(_mm256_permutevar8x32_ps(magnitudes, codes), _mm256_castsi256_ps(sign));
}

static inline vec vec_from_f16(const uint16_t *p /* [8] */)
{
    return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)p));
}

static inline vec vec_from_f16_some(const uint16_t *p /* [n] */, int64_t n)
{
    return _mm256_cvtph_ps(vec_halves_some(p, n));
}

static inline vec_units vec_load_units(const uint32_t *p /* [8] */)
{
    return _mm256_loadu_si256((const __m256i *)p);
}

static inline vec vec_low_halves(vec_units a)
{
    return _mm256_castsi256_ps(_mm256_slli_epi32(a, 16));
}

static inline vec vec_high_halves(vec_units a)
{
    return _mm256_castsi256_ps(_mm256_and_si256(a, _mm256_set1_epi32((int)0xffff0000u)));
}

// Keeps lanes first .. last of a, puts minus infinity into the others.
static inline vec vec_keep_range(vec a, int32_t first, int32_t last)
{
    __m256i drop = _mm256_or_si256(_mm256_cmpgt_epi32(_mm256_set1_epi32(first), vec_lane_numbers()),
                                   _mm256_cmpgt_epi32(vec_lane_numbers(), _mm256_set1_epi32(last)));
    return _mm256_blendv_ps(a, _mm256_set1_ps(-__builtin_inff()), _mm256_castsi256_ps(drop));
}

static inline float vec_largest(vec a)
{
    __m128 four = _mm_max_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
    four = _mm_max_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_max_ss(four, _mm_movehdup_ps(four)));
}

// Sums of the lanes of four vectors, each in the same order: halves first, neighbours last.
static inline __m128 vec_sum4(vec a, vec b, vec c, vec d)
{
    vec ab = _mm256_add_ps(_mm256_permute2f128_ps(a, b, 0x20), _mm256_permute2f128_ps(a, b, 0x31));
    vec cd = _mm256_add_ps(_mm256_permute2f128_ps(c, d, 0x20), _mm256_permute2f128_ps(c, d, 0x31));
    // Lanes now: ab = a a a a b b b b. Pairs two apart, then neighbours; the result is a c . . b d . .
    vec pairs = _mm256_add_ps(_mm256_shuffle_ps(ab, cd, 0x44), _mm256_shuffle_ps(ab, cd, 0xee));
    vec sums = _mm256_add_ps(_mm256_shuffle_ps(pairs, pairs, 0x08), _mm256_shuffle_ps(pairs, pairs, 0x0d));
    return _mm_unpacklo_ps(_mm256_castps256_ps128(sums), _mm256_extractf128_ps(sums, 1));
}

static inline vec vec_round(vec a)
{
    return _mm256_round_ps(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}

// a * 2^n for a in [0.7, 1.5] and whole n in [-127, 0]; exactly zero for n = -127 and a = 1.
static inline vec vec_scale(vec a, vec n)
{
    return _mm256_castsi256_ps(
        _mm256_add_epi32(_mm256_castps_si256(a), _mm256_slli_epi32(_mm256_cvtps_epi32(n), 23)));
}

#endif
