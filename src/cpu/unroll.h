// What kernels need a compiler to do without being asked twice.
#ifndef NIB_CPU_UNROLL_H
#define NIB_CPU_UNROLL_H

// An instrumented build keeps loops and calls as they are written: unrolled, with their checks, kernels take minutes to
// compile.
#ifdef NIB_KEEP_LOOPS
#define INLINE static inline
#else
#define INLINE static inline __attribute__((always_inline))
#endif

#if defined(NIB_KEEP_LOOPS)
#define UNROLL
#elif defined(__clang__)
#define UNROLL _Pragma("clang loop unroll(full)")
#else
#define UNROLL _Pragma("GCC unroll 32")
#endif

#endif
