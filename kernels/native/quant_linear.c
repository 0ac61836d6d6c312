/* y[M,N] = x[M,K] @ W[N,K]^T in float32, with W kept in 4 or 8 bits.
 *
 * W lies in panels of 16 rows (the last one padded with zeros), so that a SIMD lane is a row of W and no sum goes across lanes. A panel is
 * a stream of groups along K. A group is 16 scales (float32), then:
 *   KIND4    16 offsets (float32) and 4 x 16 words of 32 bits. Word w of a row holds 8 signed codes; nibble j is the one at
 *            4 w + j/2 + 16 (j%2) of the group's 32 (the order of GGUF's own bytes).  value = scale * code + offset
 *   KIND8    32 x 16 signed bytes.  value = scale * code
 *   KIND8S   the same with 16 x 16 bytes: groups of 16.
 *
 * Vectors are those of GCC and clang: 16 lanes with AVX-512, 8 with AVX2, else 4 (SSE2, NEON).
 */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define PANEL 16
#define KIND4 0
#define KIND8 1
#define KIND8S 2
#define BLOCK 256 /* of K, when a panel is dequantised for many rows of x: 16 KiB, half of the smallest L1 cache */

#if defined(__AVX512F__)
#include <immintrin.h>
#define LANES 16
#define DIRECT_ROWS 8
#define TILE_ROWS 14
#elif defined(__AVX2__) && defined(__FMA__)
#include <immintrin.h>
#define LANES 8
#define DIRECT_ROWS 4
#define TILE_ROWS 8
#else
#define LANES 4
#define DIRECT_ROWS 4
#define TILE_ROWS 8
#endif

typedef float vf __attribute__((vector_size(4 * LANES), may_alias));
typedef int32_t vi __attribute__((vector_size(4 * LANES), may_alias));
typedef int8_t vb __attribute__((vector_size(LANES), may_alias));

#define INLINE static inline __attribute__((always_inline))
#if defined(__clang__)
#define UNROLL _Pragma("clang loop unroll(full)")
#else
#define UNROLL _Pragma("GCC unroll 32")
#endif

INLINE int group_size(int kind) { return kind == KIND8S ? 16 : 32; }
INLINE long group_bytes(int kind) { return kind == KIND4 ? 384 : kind == KIND8 ? 576 : 320; }

/* The signed nibble j of every lane as a float. */
INLINE vf nibbles(vi words, int j)
{
#if defined(__AVX512F__)
    const __m512 table = _mm512_setr_ps(0, 1, 2, 3, 4, 5, 6, 7, -8, -7, -6, -5, -4, -3, -2, -1);
    return (vf)_mm512_permutexvar_ps(_mm512_srli_epi32((__m512i)words, 4 * j), table); /* looks at the low four bits only */
#else
    return __builtin_convertvector(words << (28 - 4 * j) >> 28, vf);
#endif
}

INLINE vf bytes(const uint8_t *at)
{
#if defined(__AVX512F__)
    return (vf)_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_load_si128((const __m128i *)at)));
#elif defined(__AVX2__)
    return (vf)_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i *)at)));
#else
    return __builtin_convertvector(*(const vb *)at, vf);
#endif
}

/* LANES columns of y, from column `part` * LANES of the panel, for `m` rows of x. `sums` are those of x by groups. */
INLINE void direct(const int kind, const int m, const int part, const uint8_t *w, const float *x, const float *sums, long k, float *out)
{
    const int chains = m == 1 ? 4 : m == 2 ? 2 : 1; /* sums that do not wait for each other */
    const int size = group_size(kind);
    const long groups = k / size;
    vf total[DIRECT_ROWS];
    UNROLL for (int r = 0; r < m; r++) total[r] = (vf){0};
    for (long g = 0; g < groups; g++, w += group_bytes(kind), x += size) {
        vf dot[DIRECT_ROWS + 4];
        UNROLL for (int r = 0; r < m * chains; r++) dot[r] = (vf){0};
        if (kind == KIND4) {
            UNROLL for (int word = 0; word < 4; word++) {
                const vi words = *(const vi *)(w + 128 + 64 * word + 4 * LANES * part);
                UNROLL for (int j = 0; j < 8; j++) {
                    const vf code = nibbles(words, j);
                    UNROLL for (int r = 0; r < m; r++) dot[r + m * (j % chains)] += code * x[r * k + 4 * word + j / 2 + 16 * (j % 2)];
                }
            }
        } else {
            UNROLL for (int j = 0; j < size; j++) {
                const vf code = bytes(w + 64 + PANEL * j + LANES * part);
                UNROLL for (int r = 0; r < m; r++) dot[r + m * (j % chains)] += code * x[r * k + j];
            }
        }
        const vf scale = *(const vf *)(w + 4 * LANES * part);
        UNROLL for (int r = 0; r < m; r++) {
            vf sum = dot[r];
            UNROLL for (int c = 1; c < chains; c++) sum += dot[r + m * c];
            total[r] += scale * sum;
            if (kind == KIND4) total[r] += *(const vf *)(w + 64 + 4 * LANES * part) * sums[r * groups + g];
        }
    }
    UNROLL for (int r = 0; r < m; r++) *(vf *)(out + r * PANEL + LANES * part) = total[r];
}

INLINE void direct_kind(const int m, int kind, const uint8_t *w, const float *x, const float *sums, long k, float *out)
{
    for (int part = 0; part < PANEL / LANES; part++) {
        if (kind == KIND4) direct(KIND4, m, part, w, x, sums, k, out);
        else if (kind == KIND8) direct(KIND8, m, part, w, x, sums, k, out);
        else direct(KIND8S, m, part, w, x, sums, k, out);
    }
}

#define DIRECT(m) \
    static void direct_##m(int kind, const uint8_t *w, const float *x, const float *sums, long k, float *out) { direct_kind(m, kind, w, x, sums, k, out); }
DIRECT(1) DIRECT(2) DIRECT(3) DIRECT(4)
#if DIRECT_ROWS == 8
DIRECT(5) DIRECT(6) DIRECT(7) DIRECT(8)
#endif

typedef void direct_rows(int, const uint8_t *, const float *, const float *, long, float *);
static direct_rows *const DIRECTS[] = {
    direct_1, direct_2, direct_3, direct_4,
#if DIRECT_ROWS == 8
    direct_5, direct_6, direct_7, direct_8,
#endif
};

/* The columns of one panel in y from out[rows][PANEL], with the bias. */
static void store(const float *out, int rows, float *y, long n, long column, const float *bias)
{
    const int width = n - column < PANEL ? (int)(n - column) : PANEL;
    for (int r = 0; r < rows; r++)
        for (int c = 0; c < width; c++) y[r * n + column + c] = out[r * PANEL + c] + (bias ? bias[column + c] : 0.0f);
}

/* Values of `count` groups of a panel as out[k][PANEL]. */
static void dequantise(int kind, const uint8_t *w, int count, float *out)
{
    const int size = group_size(kind);
    for (int g = 0; g < count; g++, w += group_bytes(kind), out += size * PANEL)
        for (int part = 0; part < PANEL / LANES; part++) {
            const vf scale = *(const vf *)(w + 4 * LANES * part);
            float *to = out + LANES * part;
            if (kind == KIND4) {
                const vf offset = *(const vf *)(w + 64 + 4 * LANES * part);
                for (int word = 0; word < 4; word++) {
                    const vi words = *(const vi *)(w + 128 + 64 * word + 4 * LANES * part);
                    UNROLL for (int j = 0; j < 8; j++) *(vf *)(to + PANEL * (4 * word + j / 2 + 16 * (j % 2))) = scale * nibbles(words, j) + offset;
                }
            } else {
                for (int j = 0; j < size; j++) *(vf *)(to + PANEL * j) = scale * bytes(w + 64 + PANEL * j + LANES * part);
            }
        }
}

/* acc[m][PANEL] += x[m][count] @ tile[count][PANEL] */
INLINE void tile(const int m, const float *values, long count, const float *x, long k, float *acc)
{
    for (int part = 0; part < PANEL / LANES; part++) {
        vf sum[TILE_ROWS];
        UNROLL for (int r = 0; r < m; r++) sum[r] = *(const vf *)(acc + r * PANEL + LANES * part);
        for (long i = 0; i < count; i++) {
            const vf w = *(const vf *)(values + PANEL * i + LANES * part);
            UNROLL for (int r = 0; r < m; r++) sum[r] += w * x[r * k + i];
        }
        UNROLL for (int r = 0; r < m; r++) *(vf *)(acc + r * PANEL + LANES * part) = sum[r];
    }
}

static void tile_full(const float *values, long count, const float *x, long k, float *acc) { tile(TILE_ROWS, values, count, x, k, acc); }

static void tile_rest(int m, const float *values, long count, const float *x, long k, float *acc)
{
    for (; m >= 4; m -= 4, x += 4 * k, acc += 4 * PANEL) tile(4, values, count, x, k, acc);
    for (; m > 0; m--, x += k, acc += PANEL) tile(1, values, count, x, k, acc);
}

/* One panel for many rows: blocks of K are dequantised once for all of them. acc: [m][PANEL] */
static void many_rows(int kind, const uint8_t *w, const float *x, long m, long k, float *acc)
{
    float values[BLOCK * PANEL] __attribute__((aligned(64)));
    memset(acc, 0, sizeof(float) * m * PANEL);
    for (long start = 0; start < k; start += BLOCK) {
        const long count = k - start < BLOCK ? k - start : BLOCK;
        const int groups = (int)(count / group_size(kind));
        dequantise(kind, w, groups, values);
        w += groups * group_bytes(kind);
        long r = 0;
        for (; r + TILE_ROWS <= m; r += TILE_ROWS) tile_full(values, count, x + r * k + start, k, acc + r * PANEL);
        tile_rest((int)(m - r), values, count, x + r * k + start, k, acc + r * PANEL);
    }
}

/* `bias` may be NULL. From `many` rows on panels are dequantised first. 0, or 1 when there is no memory. */
int pagewire_quant_linear(int kind, const uint8_t *w, const float *bias, const float *x, float *y, long m, long n, long k, long many, int threads)
{
    const long panels = (n + PANEL - 1) / PANEL, groups = k / group_size(kind), panel_bytes = groups * group_bytes(kind);
    const int tiled = m >= many;
    float *sums = m == 0 || tiled || kind != KIND4 ? NULL : malloc(sizeof(float) * m * groups);
    int failed = 0;
    if (m == 0) return 0;
    if (!tiled && kind == KIND4 && sums == NULL) return 1;
    if (sums)
        for (long i = 0; i < m * groups; i++) {
            float sum = 0;
            for (int j = 0; j < 32; j++) sum += x[i * 32 + j];
            sums[i] = sum;
        }
#pragma omp parallel num_threads(threads) reduction(| : failed)
    {
        float few[DIRECT_ROWS * PANEL] __attribute__((aligned(64)));
        float *acc = tiled ? aligned_alloc(64, sizeof(float) * m * PANEL) : NULL;
        failed |= tiled && acc == NULL;
#pragma omp for schedule(static)
        for (long p = 0; p < panels; p++) {
            const uint8_t *panel = w + p * panel_bytes;
            if (acc) {
                many_rows(kind, panel, x, m, k, acc);
                store(acc, (int)m, y, n, p * PANEL, bias);
            }
            for (long r = 0; !tiled && r < m; r += DIRECT_ROWS) {
                const int rows = m - r < DIRECT_ROWS ? (int)(m - r) : DIRECT_ROWS;
                DIRECTS[rows - 1](kind, panel, x + r * k, sums ? sums + r * groups : NULL, k, few);
                store(few, rows, y + r * n, n, p * PANEL, bias);
            }
        }
        free(acc);
    }
    free(sums);
    return failed;
}

/* Rows `ids`[count] of W as out[count][K]. 0, or 1 when there is no such row. */
int pagewire_quant_rows(int kind, const uint8_t *w, const int64_t *ids, float *out, long count, long n, long k)
{
    const int size = group_size(kind);
    const long panel_bytes = k / size * group_bytes(kind);
    for (long i = 0; i < count; i++) {
        if (ids[i] < 0 || ids[i] >= n) return 1;
        const uint8_t *group = w + ids[i] / PANEL * panel_bytes;
        const int lane = (int)(ids[i] % PANEL);
        for (float *to = out + i * k; to < out + (i + 1) * k; to += size, group += group_bytes(kind)) {
            const float scale = ((const float *)group)[lane];
            for (int j = 0; kind != KIND4 && j < size; j++) to[j] = scale * (float)((const int8_t *)group)[64 + PANEL * j + lane];
            for (int j = 0; kind == KIND4 && j < 32; j++) {
                const uint32_t word = ((const uint32_t *)group)[32 + PANEL * (j / 8) + lane];
                to[4 * (j / 8) + j % 8 / 2 + 16 * (j % 2)] = scale * (float)((int)((word >> 4 * (j % 8) & 15) ^ 8) - 8) + ((const float *)group)[PANEL + lane];
            }
        }
    }
    return 0;
}
