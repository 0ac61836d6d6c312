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

INLINE vf every(float x) { return x - (vf){0}; }

/* x * y + z with one rounding where the processor has that, else with two. Nowhere else are a product and a sum made one instruction
 * (-ffp-contract=off): the compiler would do that in some loops and not in others, as it finds faster. */
INLINE vf madd(vf x, vf y, vf z)
{
#if LANES == 16
    return (vf)_mm512_fmadd_ps((__m512)x, (__m512)y, (__m512)z);
#elif LANES == 8
    return (vf)_mm256_fmadd_ps((__m256)x, (__m256)y, (__m256)z);
#else
    return x * y + z;
#endif
}
