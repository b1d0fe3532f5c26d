// A block's keys and values as 32-bit units of two bf16, the layout that all attention kernels multiply with.
#include <immintrin.h>
#include <string.h>

#include "cpu/cpu_kernels.h"

static inline __m256i two_halves(const uint16_t *low /* [8] */, const uint16_t *high /* [8] */)
{
    __m128i low_half = _mm_loadu_si128((const __m128i *)low);
    return _mm256_inserti128_si256(_mm256_castsi128_si256(low_half), _mm_loadu_si128((const __m128i *)high), 1);
}

// Four units of eight keys, transposed: out[unit] gets the keys' units side by side.
static inline void transpose_four(const uint16_t *const *keys /* [8] */, int64_t at,
                                  uint32_t *out /* [4, NIB_ATTEND_KEYS] */)
{
    __m256i a = two_halves(keys[0] + at, keys[4] + at), b = two_halves(keys[1] + at, keys[5] + at);
    __m256i c = two_halves(keys[2] + at, keys[6] + at), d = two_halves(keys[3] + at, keys[7] + at);
    __m256i ab_low = _mm256_unpacklo_epi32(a, b), ab_high = _mm256_unpackhi_epi32(a, b);
    __m256i cd_low = _mm256_unpacklo_epi32(c, d), cd_high = _mm256_unpackhi_epi32(c, d);
    _mm256_storeu_si256((__m256i *)out, _mm256_unpacklo_epi64(ab_low, cd_low));
    _mm256_storeu_si256((__m256i *)(out + NIB_ATTEND_KEYS), _mm256_unpackhi_epi64(ab_low, cd_low));
    _mm256_storeu_si256((__m256i *)(out + 2 * NIB_ATTEND_KEYS), _mm256_unpacklo_epi64(ab_high, cd_high));
    _mm256_storeu_si256((__m256i *)(out + 3 * NIB_ATTEND_KEYS), _mm256_unpackhi_epi64(ab_high, cd_high));
}

void nib_attend_pack_keys_avx2(const struct nib_attend_block *block, int part)
{
    int64_t dim = block->head_dim, column = block->first_key_column + part * block->key_part_columns;
    uint32_t *units = block->key_units + part * ((dim + 1) / 2) * NIB_ATTEND_KEYS;
    for (int64_t key = 0; key < block->n_keys; key += 8) {
        // Keys behind the last one get the last one's units: no row sees them.
        const uint16_t *keys[8];
        for (int64_t i = 0; i < 8; i++)
            keys[i] = block->keys[key + i < block->n_keys ? key + i : block->n_keys - 1] + column;
        int64_t d = 0;
        for (; d + 8 <= dim; d += 8)
            transpose_four(keys, d, units + d / 2 * NIB_ATTEND_KEYS + key);
        for (; d < dim; d += 2)
            for (int64_t i = 0; i < 8; i++) {
                uint32_t odd = d + 1 < dim ? keys[i][d + 1] : 0;
                units[d / 2 * NIB_ATTEND_KEYS + key + i] = keys[i][d] | odd << 16;
            }
    }
}

void nib_attend_pack_values_avx2(const struct nib_attend_block *block, int part)
{
    int64_t dim = block->v_dim, column = block->first_value_column + part * block->value_part_columns;
    uint32_t *units = block->value_units + part * (NIB_ATTEND_KEYS / 2) * block->v_pitch;
    for (int64_t key = 0; key < block->n_keys; key += 2) {
        const uint16_t *even = block->values[key] + column;
        const uint16_t *odd = key + 1 < block->n_keys ? block->values[key + 1] + column : NULL;
        uint32_t *out = units + key / 2 * block->v_pitch;
        int64_t d = 0;
        for (; d + 16 <= dim; d += 16) {
            // Quarters in the order 0 2 1 3, so that interleaving within 128-bit lanes gives neighbours.
            __m256i a = _mm256_permute4x64_epi64(_mm256_loadu_si256((const __m256i *)(even + d)), 0xd8);
            __m256i b = _mm256_setzero_si256();
            if (odd)
                b = _mm256_permute4x64_epi64(_mm256_loadu_si256((const __m256i *)(odd + d)), 0xd8);
            _mm256_storeu_si256((__m256i *)(out + d), _mm256_unpacklo_epi16(a, b));
            _mm256_storeu_si256((__m256i *)(out + d + 8), _mm256_unpackhi_epi16(a, b));
        }
        for (; d < dim; d++)
            out[d] = even[d] | (odd ? (uint32_t)odd[d] << 16 : 0);
        memset(out + dim, 0, (size_t)(block->v_pitch - dim) * sizeof *out);
    }
}
