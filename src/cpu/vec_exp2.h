// 2^x for x <= 0, for both widths: included after vec_avx2.h or vec_avx512.h.
#ifndef NIB_CPU_VEC_EXP2_H
#define NIB_CPU_VEC_EXP2_H

// Relative error at most 2.5e-7 down to x = -126; below that (minus infinity too) the result is under 2^-125, and exactly
// zero from x = -127 down. Exactly 1 at 0. NaN gives NaN. The polynomial is 1 + r*q(r), q fitted to the least largest
// relative error (9.2e-8) for r in [-0.5, 0.5].
static inline vec vec_exp2(vec x)
{
    x = vec_max(vec_set(-127.0f), x);
    vec n = vec_round(x), r = vec_sub(x, n);
    vec p = vec_fma(vec_set(0x1.5bba0ep-10f), r, vec_set(0x1.3cea88p-7f));
    p = vec_fma(p, r, vec_set(0x1.c6b752p-5f));
    p = vec_fma(p, r, vec_set(0x1.ebf9bcp-3f));
    p = vec_fma(p, r, vec_set(0x1.62e42ap-1f));
    p = vec_fma(p, r, vec_set(1.0f));
    return vec_scale(p, n);
}

#endif
