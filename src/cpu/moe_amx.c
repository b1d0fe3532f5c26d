// AMX: tiles of 16 activation rows times 16 weight rows, 32 columns at a time.
//
// The dwords of a chunk (64 packed bytes) of 16 weight rows are transposed once, so that one vector holds dword d of every
// row: elements 8d … 8d+7. Unpacking its nibble plane p then gives the pairs (8d + p, 8d + 4 + p) of 16 rows, which is row d
// of the second operand of tdpbf16ps; and the same pairs are what an activation row arranged by planes (see
// moe_avx512bf16.c) has side by side, so the first operand is read where it lies. Scales are folded into the exponents as
// there. Sums run over the columns in one order whatever the number of activation rows, and need no reduction.
//
// For a single activation row the operands change places: weights, unpacked row by row, are the first, which spares the
// transposition, and the row as it lies is a second operand one pair wide. The products of a sum and their order stay.
#include <immintrin.h>
#include <stdbool.h>

#include "cpu/moe_activation.h"
#include "cpu/moe_avx512bf16.h"

#define TILE 16
#define NEAR_CHUNKS 3 // ahead in each row: brings on to L1 what the hints for the block ahead left in L2

// Tile registers: sums 0 … 3, weights, activations of a full tile, and of the last one with fewer rows.
#define WEIGHTS 4
#define FULL 5
#define LAST 6

struct tile_config {
    uint8_t palette, start_row, reserved[14];
    uint16_t row_bytes[16];
    uint8_t rows[16];
};

static void configure(int m)
{
    _Alignas(64) struct tile_config config = {.palette = 1};
    for (int i = 0; i <= LAST; i++) {
        config.row_bytes[i] = 64;
        config.rows[i] = TILE;
    }
    if (m % TILE) {
        config.rows[m / TILE] = (uint8_t)(m % TILE);
        config.rows[LAST] = (uint8_t)(m % TILE);
    }
    _tile_loadconfig(&config);
}

// vector[i] holds 16 dwords of row i; afterwards those of column i.
INLINE void transpose_16(__m512i *vector)
{
    __m512i pair[16], quad[16], half[16];
    UNROLL
    for (int i = 0; i < 16; i += 2) {
        pair[i] = _mm512_unpacklo_epi32(vector[i], vector[i + 1]);
        pair[i + 1] = _mm512_unpackhi_epi32(vector[i], vector[i + 1]);
    }
    UNROLL
    for (int i = 0; i < 16; i += 4) { // quad[i + j]: dword j of each 128-bit lane, of rows i … i + 3
        quad[i] = _mm512_unpacklo_epi64(pair[i], pair[i + 2]);
        quad[i + 1] = _mm512_unpackhi_epi64(pair[i], pair[i + 2]);
        quad[i + 2] = _mm512_unpacklo_epi64(pair[i + 1], pair[i + 3]);
        quad[i + 3] = _mm512_unpackhi_epi64(pair[i + 1], pair[i + 3]);
    }
    UNROLL
    for (int j = 0; j < 4; j++) { // lanes 0 and 2, or 1 and 3, of rows 0 … 7 and of 8 … 15
        half[j] = _mm512_shuffle_i32x4(quad[j], quad[4 + j], 0x88);
        half[4 + j] = _mm512_shuffle_i32x4(quad[j], quad[4 + j], 0xdd);
        half[8 + j] = _mm512_shuffle_i32x4(quad[8 + j], quad[12 + j], 0x88);
        half[12 + j] = _mm512_shuffle_i32x4(quad[8 + j], quad[12 + j], 0xdd);
    }
    UNROLL
    for (int j = 0; j < 4; j++) {
        vector[j] = _mm512_shuffle_i32x4(half[j], half[8 + j], 0x88);
        vector[8 + j] = _mm512_shuffle_i32x4(half[j], half[8 + j], 0xdd);
        vector[4 + j] = _mm512_shuffle_i32x4(half[4 + j], half[12 + j], 0x88);
        vector[12 + j] = _mm512_shuffle_i32x4(half[4 + j], half[12 + j], 0xdd);
    }
}

// Scale b of each row's four, as the words to subtract from its raised codes.
INLINE __m512i block_folds(__m512i scales, int b)
{
    const __m512i top_byte = _mm512_set4_epi32(0x0c800c80, 0x08800880, 0x04800480, 0x00800080);
    __m512i byte_b = _mm512_srli_epi32(scales, (unsigned char)(8 * b));
    __m512i exponent = _mm512_srli_epi16(_mm512_shuffle_epi8(byte_b, top_byte), 1);
    return _mm512_sub_epi16(_mm512_set1_epi16(252 << 7), exponent);
}

// One chunk of the 16 rows, as the second operands of its four planes: [plane][dword][row] pairs.
static void unpack_chunk(const struct nib_moe_block *block, int64_t c, int64_t partial,
                         uint16_t (*tiles)[TILE][32])
{
    const __m512i table = load_table(codes_raised);
    __m512i dword[16];
    _Alignas(64) int32_t scale_bytes[16];
    UNROLL
    for (int i = 0; i < 16; i++) {
        dword[i] = load_packed(nib_moe_block_packed(block, i) + c * CHUNK_BYTES, partial);
        scale_bytes[i] = _mm_cvtsi128_si32(
            _mm512_castsi512_si128(load_scales(nib_moe_block_scales(block, i) + c * CHUNK_SCALES, partial)));
    }
    transpose_16(dword);
    __m512i scales = _mm512_load_si512(scale_bytes);
    UNROLL
    for (int b = 0; b < 4; b++) {
        __m512i fold = block_folds(scales, b);
        UNROLL
        for (int d = 4 * b; d < 4 * b + 4; d++) {
            UNROLL
            for (int p = 0; p < 4; p++) {
                __m512i code = p ? _mm512_srli_epi16(dword[d], (unsigned char)(4 * p)) : dword[d];
                __m512i weight = _mm512_subs_epu16(_mm512_permutexvar_epi16(code, table), fold);
                _mm512_store_si512(tiles[p][d], weight);
            }
        }
    }
}

// Tile registers are named by constants, so the tiles of activation rows are spelled out.
INLINE void multiply_plane(const uint8_t *weights, const uint8_t *x, int64_t stride, int full, bool rest)
{
    _tile_loadd(WEIGHTS, weights, 64);
    if (full > 0) {
        _tile_loadd(FULL, x, (size_t)stride);
        _tile_dpbf16ps(0, FULL, WEIGHTS);
    }
    if (full > 1) {
        _tile_loadd(FULL, x + TILE * stride, (size_t)stride);
        _tile_dpbf16ps(1, FULL, WEIGHTS);
    }
    if (full > 2) {
        _tile_loadd(FULL, x + 2 * TILE * stride, (size_t)stride);
        _tile_dpbf16ps(2, FULL, WEIGHTS);
    }
    if (full > 3) {
        _tile_loadd(FULL, x + 3 * TILE * stride, (size_t)stride);
        _tile_dpbf16ps(3, FULL, WEIGHTS);
    }
    if (!rest)
        return;
    _tile_loadd(LAST, x + full * TILE * stride, (size_t)stride);
    if (full == 0)
        _tile_dpbf16ps(0, LAST, WEIGHTS);
    else if (full == 1)
        _tile_dpbf16ps(1, LAST, WEIGHTS);
    else if (full == 2)
        _tile_dpbf16ps(2, LAST, WEIGHTS);
    else
        _tile_dpbf16ps(3, LAST, WEIGHTS);
}

static void prefetch_chunk(const struct nib_moe_block *block, const struct nib_moe_block *ahead, int64_t c)
{
    for (int i = 0; i < NIB_MOE_ROWS; i++) {
        uintptr_t here = (uintptr_t)nib_moe_block_packed(block, i);
        _mm_prefetch((const char *)nib_moe_block_packed(ahead, i) + c * CHUNK_BYTES, _MM_HINT_T1);
        _mm_prefetch((const char *)(here + (uintptr_t)((c + NEAR_CHUNKS) * CHUNK_BYTES)), _MM_HINT_T0);
    }
}

static void multiply_block(const struct nib_moe_block *block, const struct nib_moe_block *ahead, int64_t n,
                           const uint8_t *x, int64_t stride, int m, float *out)
{
    _Alignas(64) uint16_t tiles[2][4][TILE][32]; // in turn, so that unpacking runs beside the products
    int64_t whole = n / NIB_MOE_CHUNK, partial = n % NIB_MOE_CHUNK / NIB_MX_BLOCK;
    int full = m / TILE;
    bool rest = m % TILE != 0;
    configure(m);
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
    for (int64_t c = 0; c < whole + (partial != 0); c++) {
        if (ahead && c < whole)
            prefetch_chunk(block, ahead, c);
        unpack_chunk(block, c, c < whole ? 0 : partial, tiles[c & 1]);
        for (int p = 0; p < 4; p++)
            multiply_plane((const uint8_t *)tiles[c & 1][p], x + c * (2 * NIB_MOE_CHUNK) + p * 64, stride, full,
                           rest);
    }
    const size_t row = NIB_MOE_ROWS * sizeof(float);
    if (m > 0)
        _tile_stored(0, out, row);
    if (m > TILE)
        _tile_stored(1, out + TILE * NIB_MOE_ROWS, row);
    if (m > 2 * TILE)
        _tile_stored(2, out + 2 * TILE * NIB_MOE_ROWS, row);
    if (m > 3 * TILE)
        _tile_stored(3, out + 3 * TILE * NIB_MOE_ROWS, row);
    _tile_release();
}

static void configure_single(void)
{
    _Alignas(64) struct tile_config config = {.palette = 1};
    config.row_bytes[0] = config.row_bytes[FULL] = sizeof(float); // sums; the activation row, a pair a tile row
    config.row_bytes[WEIGHTS] = 64;
    config.rows[0] = config.rows[FULL] = config.rows[WEIGHTS] = TILE;
    _tile_loadconfig(&config);
}

// One chunk of the 16 rows as the first operands of its four planes: [plane][row] words.
static void unpack_chunk_by_rows(const struct nib_moe_block *block, int64_t c, int64_t partial,
                                 uint16_t (*tiles)[TILE][32])
{
    const __m512i table = load_table(codes_raised);
    for (int i = 0; i < NIB_MOE_ROWS; i++) {
        __m512i word = load_packed(nib_moe_block_packed(block, i) + c * CHUNK_BYTES, partial);
        __m512i fold = scale_folds(load_scales(nib_moe_block_scales(block, i) + c * CHUNK_SCALES, partial));
        UNROLL
        for (int p = 0; p < 4; p++) {
            __m512i code = p ? _mm512_srli_epi16(word, (unsigned char)(4 * p)) : word;
            _mm512_store_si512(tiles[p][i], _mm512_subs_epu16(_mm512_permutexvar_epi16(code, table), fold));
        }
    }
}

static void multiply_block_single(const struct nib_moe_block *block, const struct nib_moe_block *ahead, int64_t n,
                                  const uint8_t *x, float *out)
{
    _Alignas(64) uint16_t tiles[2][4][TILE][32];
    int64_t whole = n / NIB_MOE_CHUNK, partial = n % NIB_MOE_CHUNK / NIB_MX_BLOCK;
    configure_single();
    _tile_zero(0);
    for (int64_t c = 0; c < whole + (partial != 0); c++) {
        if (ahead && c < whole)
            prefetch_chunk(block, ahead, c);
        unpack_chunk_by_rows(block, c, c < whole ? 0 : partial, tiles[c & 1]);
        for (int p = 0; p < 4; p++) {
            _tile_loadd(WEIGHTS, tiles[c & 1][p], 64);
            _tile_loadd(FULL, x + c * (2 * NIB_MOE_CHUNK) + p * 64, sizeof(float));
            _tile_dpbf16ps(0, WEIGHTS, FULL);
        }
    }
    _tile_stored(0, out, sizeof(float));
    _tile_release();
}

// Scales that cannot be folded: plainly, in fp32.
static void multiply_block_exact(const struct nib_moe_block *block, int64_t n, const void *const *x, int m,
                                 float *out)
{
    for (int i = 0; i < NIB_MOE_ROWS; i++) {
        for (int t = 0; t < m; t++) {
            float sum = 0;
            for (int64_t b = 0; b < n / NIB_MX_BLOCK; b++) {
                float weight[NIB_MX_BLOCK];
                nib_mxfp4_decode_row(nib_moe_block_packed(block, i) + b * NIB_MX_BLOCK / 2,
                                     nib_moe_block_scales(block, i) + b, NIB_MX_BLOCK, weight);
                for (int k = 0; k < NIB_MX_BLOCK; k++) {
                    int64_t place = nib_moe_plane_index(b * NIB_MX_BLOCK + k);
                    sum += weight[k] * nib_bf16_to_f32(((const uint16_t *)x[t])[place]);
                }
            }
            out[t * NIB_MOE_ROWS + i] = sum;
        }
    }
}

static void multiply(const struct nib_moe_block *block, const struct nib_moe_block *ahead, int64_t n,
                     const void *const *x, int m, float *out)
{
    if (ahead)
        prefetch_scales(ahead, n);
    int64_t stride = m > 1 ? (const uint8_t *)x[1] - (const uint8_t *)x[0] : 64;
    if (__builtin_expect(!scales_in_range(block, n), 0))
        multiply_block_exact(block, n, x, m, out);
    else if (m == 1)
        multiply_block_single(block, ahead, n, x[0], out);
    else
        multiply_block(block, ahead, n, x[0], stride, m, out);
}

const struct nib_moe_tier nib_moe_amx = {
    .kernel =
        {
            .name = "amx",
            .reason = "tdpbf16ps on tiles of weights unpacked into the first-level cache",
            .scratch_bytes = nib_moe_packed_scratch_bytes,
            .run = nib_moe_packed_run,
        },
    .tier = NIB_CPU_AMX,
    .element_bytes = 2,
    .max_tokens = NIB_MOE_TOKENS,
    .rows_in_order = true,
    .arrange = nib_moe_arrange_planes,
    .multiply = multiply,
    .activate = nib_moe_activate_planes,
};
