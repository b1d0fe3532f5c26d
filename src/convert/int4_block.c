// MXFP4 to 4-bit integers with a bf16 scale per 32, in bf16 arithmetic as the integers' users compute it:
// scale = bf16(max / 7), q = round(bf16(w / scale)) to even, -8 unused.
#include <math.h>

#include "convert/rows.h"

static float to_bf16(float value)
{
    return nib_bf16_to_f32(nib_bf16_from_f32(value));
}

unsigned nib_largest_code(const uint8_t *codes /* [16] */)
{
    unsigned largest = 0;
    for (int i = 0; i < NIB_MX_BLOCK / 2; i++) {
        unsigned even = codes[i] & 7, odd = codes[i] >> 4 & 7;
        largest = even > largest ? even : largest;
        largest = odd > largest ? odd : largest;
    }
    return largest;
}

struct nib_int4_block nib_int4_codebook(uint8_t scale, unsigned largest)
{
    float unit = nib_e8m0_to_f32(scale), top = to_bf16(nib_e2m1_to_f32((uint8_t)largest) * unit);
    float least = to_bf16(1e-6f), step = to_bf16((top > least ? top : least) / 7);
    struct nib_int4_block block = {.scale = nib_bf16_from_f32(step), .finite = isfinite(top)};
    for (unsigned code = 0; code < 16; code++) {
        float value = to_bf16(nib_e2m1_to_f32((uint8_t)code) * unit), q = rintf(to_bf16(value / step));
        q = q > 7 ? 7 : q < -7 ? -7 : q;
        block.nibble[code] = (uint8_t)((code & 7) <= largest && block.finite ? (int)q + 8 : 8);
    }
    return block;
}
