// Sixteen fp32 lanes: the vocabulary in which kernels that exist for several widths are written once.
#ifndef NIB_CPU_VEC_AVX512_H
#define NIB_CPU_VEC_AVX512_H

#include <immintrin.h>
#include <stdint.h>

typedef __m512 vec;
typedef __m512i vec_units; // 32-bit units of two bf16, the earlier in the low half

enum { VEC_LANES = 16 };

static inline vec vec_zero(void)
{
    return _mm512_setzero_ps();
}

static inline vec vec_set(float value)
{
    return _mm512_set1_ps(value);
}

static inline vec vec_load(const float *p /* [16] */)
{
    return _mm512_loadu_ps(p);
}

static inline void vec_store(float *p /* [16] */, vec a)
{
    _mm512_storeu_ps(p, a);
}

static inline vec vec_add(vec a, vec b)
{
    return _mm512_add_ps(a, b);
}

static inline vec vec_sub(vec a, vec b)
{
    return _mm512_sub_ps(a, b);
}

static inline vec vec_mul(vec a, vec b)
{
    return _mm512_mul_ps(a, b);
}

static inline vec vec_fma(vec a, vec b, vec c)
{
    return _mm512_fmadd_ps(a, b, c);
}

// The larger, or b where either is NaN.
static inline vec vec_max(vec a, vec b)
{
    return _mm512_max_ps(a, b);
}

static inline __mmask16 vec_first(int64_t n)
{
    return (__mmask16)((1u << n) - 1u);
}

// The first n < 16 elements, zero behind them; nothing else is read.
static inline vec vec_load_some(const float *p /* [n] */, int64_t n)
{
    return _mm512_maskz_loadu_ps(vec_first(n), p);
}

static inline vec vec_from_bf16(const uint16_t *p /* [16] */)
{
    return _mm512_castsi512_ps(
        _mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)p)), 16));
}

static inline vec vec_from_bf16_some(const uint16_t *p /* [n] */, int64_t n)
{
    return _mm512_castsi512_ps(
        _mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(vec_first(n), p)), 16));
}

static inline vec vec_from_i8(const int8_t *p /* [16] */)
{
    return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i *)p)));
}

static inline vec vec_from_i8_some(const int8_t *p /* [n] */, int64_t n)
{
    return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_maskz_loadu_epi8(vec_first(n), p)));
}

// E4M3 codes read as fp16, which has the same bias but for 8: values over VEC_E4M3_UNIT, and NaN for NaN.
#define VEC_E4M3_UNIT 256.0f

static inline vec vec_widen_e4m3(__m128i codes)
{
    __m256i halves = _mm256_slli_epi16(_mm256_cvtepi8_epi16(codes), 7);
    halves = _mm256_and_si256(halves, _mm256_set1_epi16((short)0xbfff)); // one of the two copies of the sign
    __m256i magnitude = _mm256_set1_epi16(0x3f80);
    __m256i nan = _mm256_cmpeq_epi16(_mm256_and_si256(halves, magnitude), magnitude);
    return _mm512_cvtph_ps(_mm256_or_si256(halves, _mm256_and_si256(nan, _mm256_set1_epi16(0x7c00))));
}

static inline vec vec_from_e4m3(const uint8_t *p /* [16] */)
{
    return vec_widen_e4m3(_mm_loadu_si128((const __m128i *)p));
}

static inline vec vec_from_e4m3_some(const uint8_t *p /* [n] */, int64_t n)
{
    return vec_widen_e4m3(_mm_maskz_loadu_epi8(vec_first(n), p));
}

// E2M1 codes, the low nibble of a byte first.
static inline vec vec_from_e2m1(const uint8_t *p /* [8] */)
{
    __m128i bytes = _mm_loadl_epi64((const __m128i *)p), nibble = _mm_set1_epi8(15);
    __m128i codes =
        _mm_unpacklo_epi8(_mm_and_si128(bytes, nibble), _mm_and_si128(_mm_srli_epi16(bytes, 4), nibble));
    const __m512 values = _mm512_setr_ps(0, 0.5f, 1, 1.5f, 2, 3, 4, 6, -0.0f, -0.5f, -1, -1.5f, -2, -3, -4, -6);
    return _mm512_permutexvar_ps(_mm512_cvtepu8_epi32(codes), values);
}

static inline vec vec_from_f16(const uint16_t *p /* [16] */)
{
    return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)p));
}

static inline vec vec_from_f16_some(const uint16_t *p /* [n] */, int64_t n)
{
    return _mm512_cvtph_ps(_mm256_maskz_loadu_epi16(vec_first(n), p));
}

static inline vec_units vec_load_units(const uint32_t *p /* [16] */)
{
    return _mm512_loadu_si512(p);
}

static inline vec vec_low_halves(vec_units a)
{
    return _mm512_castsi512_ps(_mm512_slli_epi32(a, 16));
}

static inline vec vec_high_halves(vec_units a)
{
    return _mm512_castsi512_ps(_mm512_and_si512(a, _mm512_set1_epi32((int)0xffff0000u)));
}

// Keeps lanes first .. last of a, puts minus infinity into the others.
static inline vec vec_keep_range(vec a, int32_t first, int32_t last)
{
    __m512i lane = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    __mmask16 keep = _mm512_cmpge_epi32_mask(lane, _mm512_set1_epi32(first)) &
                     _mm512_cmple_epi32_mask(lane, _mm512_set1_epi32(last));
    return _mm512_mask_blend_ps(keep, _mm512_set1_ps(-__builtin_inff()), a);
}

static inline float vec_largest(vec a)
{
    return _mm512_reduce_max_ps(a);
}

// Sums of the lanes of four vectors, each in the same order: halves first, neighbours last.
static inline __m128 vec_sum4(vec a, vec b, vec c, vec d)
{
    vec ab = _mm512_add_ps(_mm512_shuffle_f32x4(a, b, 0x44), _mm512_shuffle_f32x4(a, b, 0xee));
    vec cd = _mm512_add_ps(_mm512_shuffle_f32x4(c, d, 0x44), _mm512_shuffle_f32x4(c, d, 0xee));
    vec all = _mm512_add_ps(_mm512_shuffle_f32x4(ab, cd, 0x88), _mm512_shuffle_f32x4(ab, cd, 0xdd));
    all = _mm512_add_ps(all, _mm512_permute_ps(all, 0x4e));
    all = _mm512_add_ps(all, _mm512_permute_ps(all, 0xb1));
    __m512i firsts = _mm512_setr_epi32(0, 4, 8, 12, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0);
    return _mm512_castps512_ps128(_mm512_permutexvar_ps(firsts, all));
}

static inline vec vec_round(vec a)
{
    return _mm512_roundscale_ps(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}

// a * 2^n for a in [0.7, 1.5] and whole n in [-127, 0]; exactly zero for n = -127 and a = 1.
static inline vec vec_scale(vec a, vec n)
{
    return _mm512_castsi512_ps(
        _mm512_add_epi32(_mm512_castps_si512(a), _mm512_slli_epi32(_mm512_cvtps_epi32(n), 23)));
}

#endif
