// AVX-512 VNNI: activation rows as groups of integers.
#include "cpu/moe_avx512vnni.h"

#include <math.h>

#define LOWEST_EXPONENT (-110) // of a unit's largest element: what is smaller loses bits at 2^-124
#define UNIT_RANGE 60          // and in a group whose largest element is 2^-60 of its row's, at 2^-74 of that

// A power of two from its exponent, -126 … 127.
static float power_of_two(int exponent)
{
    uint32_t bits = (uint32_t)(exponent + 127) << 23;
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

// Elements 4w + p of a chunk, rounded, at place w of plane p.
static void make_planes(const float *x /* [128] */, float per_unit, int16_t (*planes)[32])
{
    // From two vectors of 32 words: elements p, p + 4, … of both in one half, elements p + 1, … in the other.
    _Alignas(64) int16_t places[2][32];
    for (int i = 0; i < 32; i++)
        for (int pair = 0; pair < 2; pair++)
            places[pair][i] = (int16_t)(i % 16 * 4 + 2 * pair + i / 16);
    __m512i words[4], mixed[2][2];
    for (int i = 0; i < 4; i++) {
        __m512 scale = _mm512_set1_ps(per_unit);
        __m512i low = _mm512_cvtps_epi32(_mm512_mul_ps(_mm512_loadu_ps(x + i * 32), scale));
        __m512i high = _mm512_cvtps_epi32(_mm512_mul_ps(_mm512_loadu_ps(x + i * 32 + 16), scale));
        words[i] = _mm512_inserti64x4(_mm512_castsi256_si512(_mm512_cvtsepi32_epi16(low)),
                                      _mm512_cvtsepi32_epi16(high), 1);
    }
    for (int pair = 0; pair < 2; pair++) {
        __m512i from = _mm512_load_si512(places[pair]);
        for (int half = 0; half < 2; half++)
            mixed[pair][half] = _mm512_permutex2var_epi16(words[2 * half], from, words[2 * half + 1]);
        _mm512_store_si512(planes[2 * pair], _mm512_shuffle_i64x2(mixed[pair][0], mixed[pair][1], 0x44));
        _mm512_store_si512(planes[2 * pair + 1], _mm512_shuffle_i64x2(mixed[pair][0], mixed[pair][1], 0xee));
    }
}

// The largest exponent among n elements, 128 if one is infinite or no number.
static int largest_exponent(const float *x, int64_t n)
{
    const __m512i magnitude = _mm512_set1_epi32(0x7fffffff);
    __m512i largest = _mm512_setzero_si512(); // magnitudes are in the same order as integers
    for (int64_t i = 0; i < n; i += 16)
        largest = _mm512_max_epi32(largest, _mm512_and_si512(_mm512_loadu_si512(x + i), magnitude));
    return (_mm512_reduce_max_epi32(largest) >> 23) - 127;
}

static int at_least(int exponent, int least)
{
    return exponent > least ? exponent : least;
}

// Whole chunks of a row whose largest exponent is `row_exponent`; at most a group.
static void make_group(const float *x, int64_t chunks, int row_exponent, struct group *group)
{
    int exponent = largest_exponent(x, chunks * NIB_MOE_CHUNK);
    exponent = at_least(at_least(exponent, row_exponent - UNIT_RANGE), LOWEST_EXPONENT);
    group->unit = power_of_two(exponent - row_exponent);
    float per_unit = power_of_two(14 - exponent); // elements are below 2^(exponent + 1)
    for (int64_t c = 0; c < chunks; c++)
        make_planes(x + c * NIB_MOE_CHUNK, per_unit, group->planes[c]);
}

static float row_unit(int row_exponent)
{
    return row_exponent == 128 ? NAN : power_of_two(row_exponent - 15);
}

void nib_moe_arrange_groups(const uint16_t *x, int64_t n, void *row)
{
    struct group *groups = row;
    int row_exponent = LOWEST_EXPONENT;
    for (int64_t i = 0; i < n; i++)
        row_exponent = at_least((x[i] >> 7 & 255) - 127, row_exponent);
    for (int64_t first = 0; first < n; first += GROUP_COLUMNS) {
        _Alignas(64) float values[GROUP_COLUMNS];
        int64_t there = n - first < GROUP_COLUMNS ? n - first : GROUP_COLUMNS;
        int64_t chunks = (there + NIB_MOE_CHUNK - 1) / NIB_MOE_CHUNK;
        for (int64_t i = 0; i < there; i++)
            values[i] = nib_bf16_to_f32(x[first + i]);
        memset(values + there, 0, (size_t)(chunks * NIB_MOE_CHUNK - there) * sizeof *values);
        make_group(values, chunks, row_exponent, &groups[first / GROUP_COLUMNS]);
    }
    groups->row_unit = row_unit(row_exponent);
}

// A group is shorter than its elements were: it ends before the next one's begin.
void nib_moe_finish_groups(int64_t n, void *row)
{
    struct group *groups = row;
    int64_t row_chunks = (n + NIB_MOE_CHUNK - 1) / NIB_MOE_CHUNK;
    int row_exponent = at_least(largest_exponent(row, row_chunks * NIB_MOE_CHUNK), LOWEST_EXPONENT);
    for (int64_t first = 0; first < row_chunks; first += GROUP_CHUNKS) {
        _Alignas(64) float values[GROUP_COLUMNS];
        int64_t chunks = row_chunks - first < GROUP_CHUNKS ? row_chunks - first : GROUP_CHUNKS;
        memcpy(values, (float *)row + first * NIB_MOE_CHUNK, (size_t)(chunks * NIB_MOE_CHUNK) * sizeof *values);
        make_group(values, chunks, row_exponent, &groups[first / GROUP_CHUNKS]);
    }
    groups->row_unit = row_unit(row_exponent);
}
