/* Vectors are those of GCC and clang: 16 lanes with AVX-512, 8 with AVX2, else 4 (SSE2, NEON). */
#include <stdint.h>

#if defined(__AVX512F__)
#include <immintrin.h>
#define LANES 16
#elif defined(__AVX2__) && defined(__FMA__)
#include <immintrin.h>
#define LANES 8
#else
#define LANES 4
#endif

typedef float vf __attribute__((vector_size(4 * LANES), may_alias));
typedef float vu __attribute__((vector_size(4 * LANES), may_alias, aligned(4)));
typedef int32_t vi __attribute__((vector_size(4 * LANES), may_alias));
typedef int8_t vb __attribute__((vector_size(LANES), may_alias));

#define INLINE static inline __attribute__((always_inline))
#if defined(__clang__)
#define UNROLL _Pragma("clang loop unroll(full)")
#else
#define UNROLL _Pragma("GCC unroll 32")
#endif
