// AVX-512 without BF16: vpermps looks each nibble up among the sixteen fp32 values of E2M1.
//
// 64 packed bytes are 16 dwords of eight elements. Dword d belongs to scale block d / 4, so the eight nibble planes (the
// dword shifted by 0, 4, … 28, of which vpermps reads the low four bits) share one vector of scales, and an activation row
// arranged by planes meets them without a shuffle.
#include <immintrin.h>

#include "cpu/moe_activation.h"
#include "cpu/moe_packed.h"
#include "cpu/unroll.h"

#define PANEL_CHUNKS 8 // 4 KiB of a fp32 activation row: what eight tokens read again for each row stays in L1
#define PANEL_COLUMNS (PANEL_CHUNKS * NIB_MOE_CHUNK)
#define PANEL_SCALES (PANEL_COLUMNS / NIB_MX_BLOCK)

// Up to PANEL_CHUNKS chunks of a block's rows.
struct panel {
    const struct nib_moe_block *block;
    const struct nib_moe_block *ahead; // to prefetch, or NULL
    const uint8_t *after;              // packed weights of the first rows that are multiplied behind this panel
    int64_t start, columns;
    _Alignas(64) float scales[NIB_MOE_ROWS][PANEL_SCALES]; // zero past the last column
};

static const uint8_t *panel_packed(const struct panel *panel, int row)
{
    return row < NIB_MOE_ROWS ? nib_moe_block_packed(panel->block, row) + panel->start / 2 : panel->after;
}

static void expand_scales(struct panel *panel)
{
    int64_t n = panel->columns / NIB_MX_BLOCK;
    for (int i = 0; i < NIB_MOE_ROWS; i++) {
        const uint8_t *scales = nib_moe_block_scales(panel->block, i) + panel->start / NIB_MX_BLOCK;
        float *values = panel->scales[i];
        for (int64_t k = 0; k < n; k++) {
            uint32_t byte = scales[k], bits = byte << 23;
            bits = byte == 0 ? 0x00400000u : bits;   // 2^-127, a subnormal
            bits = byte == 255 ? 0x7fc00000u : bits; // NaN
            memcpy(&values[k], &bits, sizeof bits);
        }
        for (int64_t k = n; k % (NIB_MOE_CHUNK / NIB_MX_BLOCK); k++)
            values[k] = 0;
    }
}

// Hints for chunk c of the rows of a tile: into L2 those of the block ahead, into L1 the ones that are multiplied next.
INLINE void prefetch_chunk(const struct panel *panel, int first, int rows, int64_t c)
{
    uintptr_t next = (uintptr_t)panel_packed(panel, first + rows) - (uintptr_t)panel_packed(panel, first);
    UNROLL
    for (int i = 0; i < rows; i++) {
        const uint8_t *far = nib_moe_block_packed(panel->ahead, first + i) + panel->start / 2;
        uintptr_t here = (uintptr_t)panel_packed(panel, first + i);
        _mm_prefetch((const char *)far + c * 64, _MM_HINT_T1);
        _mm_prefetch((const char *)(here + next) + c * 64, _MM_HINT_T0);
    }
}

static void prefetch_scales(const struct nib_moe_block *block, int64_t n)
{
    for (int i = 0; i < NIB_MOE_ROWS; i++)
        for (int64_t k = 0; k < n / NIB_MX_BLOCK; k += 64)
            _mm_prefetch((const char *)nib_moe_block_scales(block, i) + k, _MM_HINT_T1);
}

INLINE __m512 load_x(const float *x, int64_t chunk, int plane)
{
    return _mm512_load_ps(x + chunk * NIB_MOE_CHUNK + plane * 16);
}

// The four scales of a chunk, each for the 4 dwords of its block.
INLINE __m512 spread_scales(const float *scales)
{
    const __m512i places = _mm512_set_epi32(3, 3, 3, 3, 2, 2, 2, 2, 1, 1, 1, 1, 0, 0, 0, 0);
    return _mm512_permutevar_ps(_mm512_broadcast_f32x4(_mm_load_ps(scales)), places);
}

INLINE void multiply_chunk(const struct panel *panel, int first, int64_t c, __mmask16 dwords, int rows,
                           const float *const *x, int m, __m512 *sum)
{
    const __m512 table = _mm512_set_ps(-6, -4, -3, -2, -1.5f, -1, -0.5f, 0, 6, 4, 3, 2, 1.5f, 1, 0.5f, 0);
    __m512i dword[4];
    __m512 product[16];
    UNROLL
    for (int i = 0; i < rows; i++) {
        const uint8_t *packed = panel_packed(panel, first + i) + c * 64;
        dword[i] = dwords == 0xffff ? _mm512_loadu_si512(packed) : _mm512_maskz_loadu_epi32(dwords, packed);
    }
    UNROLL
    for (int p = 0; p < 8; p++) {
        __m512 weight[4];
        UNROLL
        for (int i = 0; i < rows; i++)
            weight[i] =
                _mm512_permutexvar_ps(p ? _mm512_srli_epi32(dword[i], (unsigned)(4 * p)) : dword[i], table);
        UNROLL
        for (int t = 0; t < m; t++) {
            __m512 value = load_x(x[t], c, p);
            UNROLL
            for (int i = 0; i < rows; i++) {
                __m512 *d = &product[t * rows + i];
                *d = p ? _mm512_fmadd_ps(weight[i], value, *d) : _mm512_mul_ps(weight[i], value);
            }
        }
    }
    UNROLL
    for (int i = 0; i < rows; i++) {
        __m512 scale = spread_scales(panel->scales[first + i] + c * 4);
        UNROLL
        for (int t = 0; t < m; t++)
            sum[t * rows + i] = _mm512_fmadd_ps(product[t * rows + i], scale, sum[t * rows + i]);
    }
}

INLINE void multiply_panel(const struct panel *panel, int rows, const float *const *x, int m,
                           __m512 (*saved)[NIB_MOE_ROWS])
{
    int64_t chunks = panel->columns / NIB_MOE_CHUNK;
    __mmask16 partial = (__mmask16)((1u << (panel->columns % NIB_MOE_CHUNK / 8)) - 1);
    for (int first = 0; first < NIB_MOE_ROWS; first += rows) {
        __m512 sum[16];
        UNROLL
        for (int i = 0; i < rows; i++)
            UNROLL
        for (int t = 0; t < m; t++)
            sum[t * rows + i] = panel->start ? saved[t][first + i] : _mm512_setzero_ps();
        for (int64_t c = 0; c < chunks; c++) {
            if (panel->ahead)
                prefetch_chunk(panel, first, rows, c);
            multiply_chunk(panel, first, c, 0xffff, rows, x, m, sum);
        }
        if (partial)
            multiply_chunk(panel, first, chunks, partial, rows, x, m, sum);
        UNROLL
        for (int i = 0; i < rows; i++)
            UNROLL
        for (int t = 0; t < m; t++)
            saved[t][first + i] = sum[t * rows + i];
    }
}

static void multiply_tokens(const struct panel *panel, const float *const *x, int m, __m512 (*saved)[NIB_MOE_ROWS])
{
    switch (m) {
    case 1:
        multiply_panel(panel, 4, x, 1, saved);
        break;
    case 2:
        multiply_panel(panel, 4, x, 2, saved);
        break;
    case 3:
        multiply_panel(panel, 4, x, 3, saved);
        break;
    default:
        multiply_panel(panel, 4, x, 4, saved);
        break;
    }
}

static void multiply(const struct nib_moe_block *block, const struct nib_moe_block *ahead, int64_t n,
                     const void *const *x, int m, float *out)
{
    struct panel panel;
    __m512 saved[NIB_MOE_FEW][NIB_MOE_ROWS];
    panel.block = block;
    if (ahead)
        prefetch_scales(ahead, n);
    for (panel.start = 0; panel.start < n; panel.start += PANEL_COLUMNS) {
        const float *from[NIB_MOE_FEW];
        for (int t = 0; t < m; t++)
            from[t] = (const float *)x[t] + panel.start;
        panel.columns = n - panel.start < PANEL_COLUMNS ? n - panel.start : PANEL_COLUMNS;
        expand_scales(&panel);
        if (ahead)
            panel.after = panel.start + panel.columns < n
                              ? nib_moe_block_packed(block, 0) + (panel.start + panel.columns) / 2
                              : nib_moe_block_packed(ahead, 0);
        for (int t = 0; t < m; t += 4) { // 32 registers hold what four tokens need
            panel.ahead = t ? NULL : ahead;
            multiply_tokens(&panel, from + t, m - t < 4 ? m - t : 4, saved + t);
        }
    }
    for (int t = 0; t < m; t++)
        for (int i = 0; i < NIB_MOE_ROWS; i++)
            out[t * NIB_MOE_ROWS + i] = _mm512_reduce_add_ps(saved[t][i]);
}

// Element 8d + p of a chunk is at place d of plane p.
static int64_t place(int64_t i)
{
    return (i & -NIB_MOE_CHUNK) + (i & 7) * 16 + (i % NIB_MOE_CHUNK >> 3);
}

static void arrange(const uint16_t *x, int64_t n, void *row)
{
    float *planes = row;
    for (int64_t i = n; i % NIB_MOE_CHUNK; i++)
        planes[place(i)] = 0;
    for (int64_t i = 0; i < n; i++)
        planes[place(i)] = nib_bf16_to_f32(x[i]);
}

static void arrange_f32(const float *x, int64_t n, void *row)
{
    float *planes = row;
    for (int64_t i = n; i % NIB_MOE_CHUNK; i++)
        planes[place(i)] = 0;
    for (int64_t i = 0; i < n; i++)
        planes[place(i)] = x[i];
}

static void activate(const struct nib_activation *activation, const float *gate_up, int64_t first, void *row,
                     void *rest)
{
    float value[8];
    (void)rest;
    _mm256_storeu_ps(value, moe_activate_8(activation, gate_up));
    for (int i = 0; i < 8; i++)
        ((float *)row)[place(first + i)] = value[i];
}

const struct nib_moe_tier nib_moe_avx512 = {
    .kernel =
        {
            .name = "avx512",
            .reason = "fp32 multiply-adds on weights looked up in registers; no BF16 instructions",
            .takes_f32 = true,
            .scratch_bytes = nib_moe_packed_scratch_bytes,
            .run = nib_moe_packed_run,
        },
    .tier = NIB_CPU_AVX512,
    .element_bytes = 4,
    .max_tokens = NIB_MOE_FEW,
    .arrange = arrange,
    .arrange_f32 = arrange_f32,
    .multiply = multiply,
    .activate = activate,
};
