// AVX2: byte products. Weights become bytes by table, activations 16-bit integers in two bytes.
//
// 32 packed bytes are two scale blocks, one in each 128-bit lane. vpshufb turns low and high nibbles into 2v + 12, a byte
// from 0 to 24 (v is the E2M1 value), which is the unsigned operand of vpmaddubsw. An activation row is cut into steps of
// 64; each lane's 32 elements share a power of two, so that an element is (256 high + low) * unit with two signed bytes.
// A bf16 within 2^-8 of its block's largest is held exactly, smaller ones and the intermediate to 2^-17 of it. The 12 that
// every weight has too much is taken off again with the sums of eight elements, which the step holds as well. fp32
// multiply-adds on fp32 weights need half as many instructions more and were half as fast.
#include <math.h>

#include "cpu/moe_activation.h"
#include "cpu/moe_packed.h"
#include "cpu/unroll.h"

#include <immintrin.h>

#define COLUMNS 64  // of a step
#define NEAR_ROWS 3 // ahead: a row at a time leaves little in flight, so what L2 has is brought on to L1 in time
#define OFFSET 12

// 64 columns of an activation row. Byte i of low[0] and high[0] belongs to element 2i, of low[1] and high[1] to 2i + 1.
struct step {
    int8_t low[2][32], high[2][32];
    int32_t correction[8]; // -12 times the sum of elements 8l … 8l + 7, in units
    float unit[8];         // of each lane, halved for the doubled weights; NaN if an element is not finite
};

_Static_assert(sizeof(struct step) <= COLUMNS * sizeof(float), "a step must fit where its fp32 elements were");

// 2^(s-127) in each lane from scale 2 * which and 2 * which + 1 of the four, unless a scale is 0 or 255.
INLINE __m256 spread_scales(__m256i four, int which)
{
    const __m256i first = _mm256_set_epi64x((int64_t)0x0180808001808080, (int64_t)0x0180808001808080,
                                            (int64_t)0x0080808000808080, (int64_t)0x0080808000808080);
    const __m256i second = _mm256_set_epi64x((int64_t)0x0380808003808080, (int64_t)0x0380808003808080,
                                             (int64_t)0x0280808002808080, (int64_t)0x0280808002808080);
    return _mm256_castsi256_ps(_mm256_srli_epi32(_mm256_shuffle_epi8(four, which ? second : first), 1));
}

// The same for any two.
static __m256 spread_any_scales(uint8_t first, uint8_t second)
{
    return _mm256_set_m128(_mm_set1_ps(nib_e8m0_to_f32(second)), _mm_set1_ps(nib_e8m0_to_f32(first)));
}

// Whether a scale is 0 or 255, which is no matter of shifting an exponent.
static bool has_odd_scale(const uint8_t *scales, int64_t n)
{
    bool found = false;
    if (n < 32) {
        for (int64_t k = 0; k < n; k++)
            found |= scales[k] == 0 || scales[k] == 255;
        return found;
    }
    __m256i odd = _mm256_setzero_si256();
    for (int64_t k = 0; k < n; k += 32) {
        int64_t at = k + 32 <= n ? k : n - 32;
        __m256i s = _mm256_loadu_si256((const __m256i *)(const void *)(scales + at));
        odd = _mm256_or_si256(odd, _mm256_cmpeq_epi8(s, _mm256_setzero_si256()));
        odd = _mm256_or_si256(odd, _mm256_cmpeq_epi8(s, _mm256_set1_epi8(-1)));
    }
    return !_mm256_testz_si256(odd, odd);
}

INLINE void multiply_step(__m256i bytes, __m256 scale, const struct step *const *x, int64_t step, int m,
                          __m256 *sum)
{
    const __m256i nibble = _mm256_set1_epi8(15);
    const __m256i table = _mm256_broadcastsi128_si256(_mm_setr_epi8(
        OFFSET, OFFSET + 1, OFFSET + 2, OFFSET + 3, OFFSET + 4, OFFSET + 6, OFFSET + 8, OFFSET + 12, OFFSET,
        OFFSET - 1, OFFSET - 2, OFFSET - 3, OFFSET - 4, OFFSET - 6, OFFSET - 8, OFFSET - 12));
    __m256i even = _mm256_shuffle_epi8(table, _mm256_and_si256(bytes, nibble));
    __m256i odd = _mm256_shuffle_epi8(table, _mm256_and_si256(_mm256_srli_epi16(bytes, 4), nibble));
    UNROLL
    for (int t = 0; t < m; t++) {
        const struct step *s = x[t] + step;
        const __m256i *low = (const __m256i *)(const void *)s->low, *high = (const __m256i *)(const void *)s->high;
        __m256i l = _mm256_add_epi16(_mm256_maddubs_epi16(even, low[0]), _mm256_maddubs_epi16(odd, low[1]));
        __m256i h = _mm256_add_epi16(_mm256_maddubs_epi16(even, high[0]), _mm256_maddubs_epi16(odd, high[1]));
        __m256i product = _mm256_add_epi32(_mm256_madd_epi16(l, _mm256_set1_epi16(1)),
                                           _mm256_madd_epi16(h, _mm256_set1_epi16(256)));
        product = _mm256_add_epi32(product, *(const __m256i *)(const void *)s->correction);
        __m256 unit = _mm256_loadu_ps(s->unit);
        sum[t] = _mm256_fmadd_ps(_mm256_cvtepi32_ps(product), _mm256_mul_ps(scale, unit), sum[t]);
    }
}

// Columns of one row for up to four activation rows; hints for the row `far`, to L2, and `near`, to L1, or neither.
INLINE void multiply_row(const uint8_t *packed, const uint8_t *scales, const uint8_t *far, const uint8_t *near,
                         int64_t n, const struct step *const *x, int m, __m256 *sum)
{
    UNROLL
    for (int t = 0; t < m; t++)
        sum[t] = _mm256_setzero_ps();
    const __m256i *words = (const __m256i *)(const void *)packed;
    int64_t steps = n / COLUMNS, i = 0;
    if (!has_odd_scale(scales, n / NIB_MX_BLOCK)) {
        for (; i + 2 <= steps; i += 2) {
            int32_t four;
            if (far) {
                _mm_prefetch((const char *)far + i * 32, _MM_HINT_T1);
                _mm_prefetch((const char *)near + i * 32, _MM_HINT_T0);
            }
            memcpy(&four, scales + 2 * i, sizeof four);
            __m256i scale = _mm256_set1_epi32(four);
            multiply_step(_mm256_loadu_si256(words + i), spread_scales(scale, 0), x, i, m, sum);
            multiply_step(_mm256_loadu_si256(words + i + 1), spread_scales(scale, 1), x, i + 1, m, sum);
        }
    }
    for (; i < steps; i++)
        multiply_step(_mm256_loadu_si256(words + i), spread_any_scales(scales[2 * i], scales[2 * i + 1]), x, i, m,
                      sum);
    if (n % COLUMNS) {
        __m128i half = _mm_loadu_si128((const __m128i *)(const void *)(packed + steps * 32));
        multiply_step(_mm256_zextsi128_si256(half), spread_any_scales(scales[2 * steps], 127), x, steps, m, sum);
    }
}

static float sum_lanes(__m256 v)
{
    __m128 four = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
    __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
}

INLINE void multiply_block(const struct nib_moe_block *block, const struct nib_moe_block *ahead, int64_t n,
                           const struct step *const *x, int m, float *out)
{
    for (int i = 0; i < NIB_MOE_ROWS; i++) {
        __m256 sum[4];
        const uint8_t *far = NULL, *near = NULL;
        if (ahead) {
            int next = i + NEAR_ROWS;
            far = nib_moe_block_packed(ahead, i);
            near = next < NIB_MOE_ROWS ? nib_moe_block_packed(block, next)
                                       : nib_moe_block_packed(ahead, next - NIB_MOE_ROWS);
            for (int64_t k = 0; k < n / NIB_MX_BLOCK; k += 64)
                _mm_prefetch((const char *)nib_moe_block_scales(ahead, i) + k, _MM_HINT_T1);
        }
        multiply_row(nib_moe_block_packed(block, i), nib_moe_block_scales(block, i), far, near, n, x, m, sum);
        UNROLL
        for (int t = 0; t < m; t++)
            out[t * NIB_MOE_ROWS + i] = sum_lanes(sum[t]);
    }
}

static void multiply(const struct nib_moe_block *block, const struct nib_moe_block *ahead, int64_t n,
                     const void *const *x, int m, float *out)
{
    for (int first = 0; first < m; first += 4) { // the weights of four stay in 16 registers
        const struct step *rows[4];
        int tile = m - first < 4 ? m - first : 4;
        for (int t = 0; t < tile; t++)
            rows[t] = x[first + t];
        switch (tile) {
        case 1:
            multiply_block(block, ahead, n, rows, 1, out + first * NIB_MOE_ROWS);
            break;
        case 2:
            multiply_block(block, ahead, n, rows, 2, out + first * NIB_MOE_ROWS);
            break;
        case 3:
            multiply_block(block, ahead, n, rows, 3, out + first * NIB_MOE_ROWS);
            break;
        default:
            multiply_block(block, ahead, n, rows, 4, out + first * NIB_MOE_ROWS);
            break;
        }
        ahead = NULL;
    }
}

// The power of two that makes `largest` at most 32512 units: what two signed bytes hold with a low one of -128 … 127.
static float pick_unit(float largest)
{
    int exponent;
    if (!(largest > 0))
        return 1;
    frexpf(largest, &exponent); // largest < 2^exponent
    if (largest > ldexpf(32512.0f / 32768, exponent))
        exponent++;
    return ldexpf(1, exponent < -110 ? -125 : exponent - 15);
}

static void make_step(const float *x /* [64] */, struct step *step)
{
    int32_t sum[8] = {0};
    for (int lane = 0; lane < 2; lane++) {
        const float *v = x + lane * 32;
        float largest = 0, check = 0;
        for (int i = 0; i < 32; i++) {
            check += v[i] * 0.0f; // NaN as soon as one is not finite
            largest = fabsf(v[i]) > largest ? fabsf(v[i]) : largest;
        }
        bool finite = check == 0;
        float unit = finite ? pick_unit(largest) : 1;
        for (int i = 0; i < 32; i++) {
            int32_t value = finite ? (int32_t)lrintf(v[i] / unit) : 0;
            int32_t low = ((value & 255) ^ 128) - 128, high = (value - low) / 256;
            int byte = lane * 16 + i / 2;
            step->low[i & 1][byte] = (int8_t)low;
            step->high[i & 1][byte] = (int8_t)high;
            sum[lane * 4 + i / 8] += value;
        }
        for (int l = 0; l < 4; l++)
            step->unit[lane * 4 + l] = finite ? unit / 2 : NAN;
    }
    for (int l = 0; l < 8; l++)
        step->correction[l] = -OFFSET * sum[l];
}

static void arrange(const uint16_t *x, int64_t n, void *row)
{
    struct step *steps = row;
    for (int64_t first = 0; first < n; first += COLUMNS) {
        float values[COLUMNS] = {0};
        for (int64_t i = 0; i < COLUMNS && first + i < n; i++)
            values[i] = nib_bf16_to_f32(x[first + i]);
        make_step(values, &steps[first / COLUMNS]);
    }
}

static void arrange_f32(const float *x, int64_t n, void *row)
{
    struct step *steps = row;
    for (int64_t first = 0; first < n; first += COLUMNS) {
        float values[COLUMNS] = {0};
        memcpy(values, x + first, (size_t)(n - first < COLUMNS ? n - first : COLUMNS) * sizeof *values);
        make_step(values, &steps[first / COLUMNS]);
    }
}

// The intermediate waits as fp32 until the row is whole; a step then takes the place of its elements.
static void activate(const struct nib_activation *activation, const float *gate_up, int64_t first, void *row,
                     void *rest)
{
    (void)rest;
    _mm256_storeu_ps((float *)row + first, moe_activate_8(activation, gate_up));
}

static void finish(int64_t n, void *row)
{
    for (int64_t first = 0; first < n; first += COLUMNS) {
        float values[COLUMNS];
        struct step step;
        memcpy(values, (float *)row + first, sizeof values);
        if (n - first < COLUMNS)
            memset(values + (n - first), 0, (size_t)(COLUMNS - (n - first)) * sizeof *values);
        make_step(values, &step);
        memcpy((struct step *)row + first / COLUMNS, &step, sizeof step);
    }
}

const struct nib_moe_tier nib_moe_avx2 = {
    .kernel =
        {
            .name = "avx2",
            .reason = "byte products of 16-bit activations with weights looked up in registers; no AVX-512",
            .takes_f32 = true,
            .scratch_bytes = nib_moe_packed_scratch_bytes,
            .run = nib_moe_packed_run,
        },
    .tier = NIB_CPU_AVX2,
    .element_bytes = 4,
    .max_tokens = NIB_MOE_FEW,
    .arrange = arrange,
    .arrange_f32 = arrange_f32,
    .multiply = multiply,
    .activate = activate,
    .finish = finish,
};
