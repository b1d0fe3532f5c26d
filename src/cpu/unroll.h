// What kernels need a compiler to do without being asked twice.
#ifndef NIB_CPU_UNROLL_H
#define NIB_CPU_UNROLL_H

#define INLINE static inline __attribute__((always_inline))
#ifdef __clang__
#define UNROLL _Pragma("clang loop unroll(full)")
#else
#define UNROLL _Pragma("GCC unroll 16")
#endif

#endif
