/* y[M,N] = x[M,K] @ W[N,K]^T in float32, with W in 4 or 8 bits or in float32.
 *
 * Every element of y is summed in one order, whatever M is and whichever way its row is computed: of a group two sums of every other code (as they
 * lie in memory) times x, then their sum times the scale onto that of the groups before, then the offset times the sum of x; in float32 one by one.
 *
 * W lies in panels of 16 rows (the last one padded with zeros), so that a SIMD lane is a row of W and no sum goes across lanes. A panel is
 * a stream of groups along K. A group is 16 scales (float32), then:
 *   KIND4    16 offsets (float32) and 4 x 16 words of 32 bits. Word w of a row holds 8 signed codes; nibble j is the one at
 *            4 w + j/2 + 16 (j%2) of the group's 32 (the order of GGUF's own bytes).  value = scale * code + offset
 *   KIND8    32 x 16 signed bytes.  value = scale * code
 *   KIND8S   the same with 16 x 16 bytes: groups of 16.
 *   KINDF    no groups: 16 values (float32) for each of K.
 */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <omp.h>
#include "lanes.h"

#define PANEL 16
#define KIND4 0
#define KIND8 1
#define KIND8S 2
#define KINDF 3
#define BLOCK 256 /* of K, when the codes of a panel are widened for many rows of x: 16 KiB, half of the smallest L1 cache */

#if defined(__AVX512F__)
#define DIRECT_ROWS 8
#define TILE_ROWS 8
#else
#define DIRECT_ROWS 4
#define TILE_ROWS 4
#endif

INLINE int group_size(int kind) { return kind == KIND8S ? 16 : 32; }
INLINE long group_bytes(int kind) { return kind == KIND4 ? 384 : kind == KIND8 ? 576 : 320; }
INLINE long panel_size(int kind, long k) { return kind == KINDF ? k * PANEL * (long)sizeof(float) : k / group_size(kind) * group_bytes(kind); }

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

/* What is added to the sum of a row for a group: its products, and the sum of x when codes have an offset. */
INLINE vf onto(vf total, const int kind, const uint8_t *w, const int part, vf dot, float sum)
{
    total = madd(*(const vf *)(w + 4 * LANES * part), dot, total);
    if (kind == KIND4) total = madd(*(const vf *)(w + 64 + 4 * LANES * part), every(sum), total);
    return total;
}

/* LANES columns of y, from column `part` * LANES of the panel, for `m` rows of x. `sums` are those of x by groups. */
INLINE void direct(const int kind, const int m, const int part, const uint8_t *w, const float *x, const float *sums, long k, float *out)
{
    const int size = group_size(kind);
    const long groups = k / size;
    vf total[DIRECT_ROWS];
    UNROLL for (int r = 0; r < m; r++) total[r] = (vf){0};
    for (long i = 0; kind == KINDF && i < k; i++) {
        const vf value = *(const vf *)(w + 4 * (PANEL * i + LANES * part));
        UNROLL for (int r = 0; r < m; r++) total[r] = madd(value, every(x[r * k + i]), total[r]);
    }
    for (long g = 0; kind != KINDF && g < groups; g++, w += group_bytes(kind), x += size) {
        vf dot[2][DIRECT_ROWS];
        UNROLL for (int r = 0; r < m; r++) dot[0][r] = dot[1][r] = (vf){0};
        if (kind == KIND4) {
            UNROLL for (int word = 0; word < 4; word++) {
                const vi words = *(const vi *)(w + 128 + 64 * word + 4 * LANES * part);
                UNROLL for (int j = 0; j < 8; j++) {
                    const vf code = nibbles(words, j);
                    UNROLL for (int r = 0; r < m; r++) dot[j % 2][r] = madd(code, every(x[r * k + 4 * word + j / 2 + 16 * (j % 2)]), dot[j % 2][r]);
                }
            }
        } else {
            UNROLL for (int j = 0; j < size; j++) {
                const vf code = bytes(w + 64 + PANEL * j + LANES * part);
                UNROLL for (int r = 0; r < m; r++) dot[j % 2][r] = madd(code, every(x[r * k + j]), dot[j % 2][r]);
            }
        }
        UNROLL for (int r = 0; r < m; r++) total[r] = onto(total[r], kind, w, part, dot[0][r] + dot[1][r], kind == KIND4 ? sums[r * groups + g] : 0);
    }
    UNROLL for (int r = 0; r < m; r++) *(vf *)(out + r * PANEL + LANES * part) = total[r];
}

INLINE void direct_kind(const int m, int kind, const uint8_t *w, const float *x, const float *sums, long k, float *out)
{
    for (int part = 0; part < PANEL / LANES; part++) {
        if (kind == KIND4) direct(KIND4, m, part, w, x, sums, k, out);
        else if (kind == KIND8) direct(KIND8, m, part, w, x, sums, k, out);
        else if (kind == KIND8S) direct(KIND8S, m, part, w, x, sums, k, out);
        else direct(KINDF, m, part, w, x, sums, k, out);
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

/* Codes of `count` groups of a panel as out[k][PANEL]. */
static void widen(int kind, const uint8_t *w, int count, float *out)
{
    const int size = group_size(kind);
    for (int g = 0; g < count; g++, w += group_bytes(kind), out += size * PANEL)
        for (int part = 0; part < PANEL / LANES; part++) {
            float *to = out + LANES * part;
            for (int word = 0; kind == KIND4 && word < 4; word++) {
                const vi words = *(const vi *)(w + 128 + 64 * word + 4 * LANES * part);
                UNROLL for (int j = 0; j < 8; j++) *(vf *)(to + PANEL * (4 * word + j / 2 + 16 * (j % 2))) = nibbles(words, j);
            }
            for (int j = 0; kind != KIND4 && j < size; j++) *(vf *)(to + PANEL * j) = bytes(w + 64 + PANEL * j + LANES * part);
        }
}

/* acc[m][PANEL] goes on with `count` of K: `values` are codes (of groups at `w`), or for KINDF the values themselves. */
INLINE void tile(const int kind, const int m, const uint8_t *w, const float *values, long count, const float *x, const float *sums, long k, float *acc)
{
    const int size = group_size(kind);
    const long groups = k / size;
    for (int part = 0; part < PANEL / LANES; part++) {
        const uint8_t *group = w;
        vf total[TILE_ROWS];
        UNROLL for (int r = 0; r < m; r++) total[r] = *(const vf *)(acc + r * PANEL + LANES * part);
        for (long i = 0; kind == KINDF && i < count; i++) {
            const vf value = *(const vf *)(values + PANEL * i + LANES * part);
            UNROLL for (int r = 0; r < m; r++) total[r] = madd(value, every(x[r * k + i]), total[r]);
        }
        for (long start = 0; kind != KINDF && start < count; start += size, group += group_bytes(kind)) {
            const float *from = values + PANEL * start + LANES * part;
            vf dot[2][TILE_ROWS];
            UNROLL for (int r = 0; r < m; r++) dot[0][r] = dot[1][r] = (vf){0};
            for (int j = 0; j < size / 2; j++) {
                const int i = kind == KIND4 ? j : 2 * j, next = kind == KIND4 ? 16 : 1;
                const vf value = *(const vf *)(from + PANEL * i), other = *(const vf *)(from + PANEL * (i + next));
                UNROLL for (int r = 0; r < m; r++) dot[0][r] = madd(value, every(x[r * k + start + i]), dot[0][r]);
                UNROLL for (int r = 0; r < m; r++) dot[1][r] = madd(other, every(x[r * k + start + i + next]), dot[1][r]);
            }
            UNROLL for (int r = 0; r < m; r++)
                total[r] = onto(total[r], kind, group, part, dot[0][r] + dot[1][r], kind == KIND4 ? sums[r * groups + start / size] : 0);
        }
        UNROLL for (int r = 0; r < m; r++) *(vf *)(acc + r * PANEL + LANES * part) = total[r];
    }
}

INLINE void tiles(const int kind, const uint8_t *w, const float *values, long count, const float *x, const float *sums, long m, long k, float *acc)
{
    const long groups = k / group_size(kind);
    long r = 0;
    for (; r + TILE_ROWS <= m; r += TILE_ROWS) tile(kind, TILE_ROWS, w, values, count, x + r * k, sums + r * groups, k, acc + r * PANEL);
    for (; r + 4 <= m; r += 4) tile(kind, 4, w, values, count, x + r * k, sums + r * groups, k, acc + r * PANEL);
    for (; r < m; r++) tile(kind, 1, w, values, count, x + r * k, sums + r * groups, k, acc + r * PANEL);
}

static void tiles_4(const uint8_t *w, const float *values, long count, const float *x, const float *sums, long m, long k, float *acc)
{
    tiles(KIND4, w, values, count, x, sums, m, k, acc);
}

static void tiles_8(const uint8_t *w, const float *values, long count, const float *x, const float *sums, long m, long k, float *acc)
{
    tiles(KIND8, w, values, count, x, sums, m, k, acc);
}

static void tiles_8s(const uint8_t *w, const float *values, long count, const float *x, const float *sums, long m, long k, float *acc)
{
    tiles(KIND8S, w, values, count, x, sums, m, k, acc);
}

static void tiles_f(const uint8_t *w, const float *values, long count, const float *x, const float *sums, long m, long k, float *acc)
{
    tiles(KINDF, w, values, count, x, sums, m, k, acc);
}

typedef void tiles_of(const uint8_t *, const float *, long, const float *, const float *, long, long, float *);
static tiles_of *const TILES[] = {tiles_4, tiles_8, tiles_8s, tiles_f};

/* One panel for many rows: blocks of K are widened once for all of them. acc: [m][PANEL] */
static void many_rows(int kind, const uint8_t *w, const float *x, const float *sums, long m, long k, float *acc)
{
    float codes[BLOCK * PANEL] __attribute__((aligned(64)));
    memset(acc, 0, sizeof(float) * m * PANEL);
    for (long start = 0; start < k; start += BLOCK) {
        const long count = k - start < BLOCK ? k - start : BLOCK;
        const long groups = count / group_size(kind);
        const float *values = kind == KINDF ? (const float *)w + start * PANEL : codes;
        if (kind != KINDF) widen(kind, w, (int)groups, codes);
        TILES[kind](w, values, count, x + start, sums + start / group_size(kind), m, k, acc);
        if (kind != KINDF) w += groups * group_bytes(kind);
    }
}

/* The sum of each 32 of `count` * 32 numbers. */
static void sum_groups(const float *x, long count, float *sums)
{
    for (long g = 0; g < count; g++, x += 32) {
        union { vf all; float one[LANES]; } part = {.all = *(const vu *)x};
        UNROLL for (int i = LANES; i < 32; i += LANES) part.all += *(const vu *)(x + i);
        UNROLL for (int width = LANES / 2; width > 0; width /= 2)
            UNROLL for (int i = 0; i < width; i++) part.one[i] += part.one[i + width];
        sums[g] = part.one[0];
    }
}

/* `bias` may be NULL. From `many` rows on panels are widened first. 0, or 1 when there is no memory. */
int pagewire_quant_linear(int kind, const uint8_t *w, const float *bias, const float *x, float *y, long m, long n, long k, long many, int threads)
{
    const long panels = (n + PANEL - 1) / PANEL, groups = k / group_size(kind), bytes_of_panel = panel_size(kind, k);
    const int tiled = m >= many;
    float *sums = NULL;
    int failed = 0;
    if (m == 0) return 0;
    if (kind == KIND4 && (sums = malloc(sizeof(float) * m * groups)) == NULL) return 1;
    if (sums && !tiled) sum_groups(x, m * groups, sums);
#pragma omp parallel num_threads(threads) reduction(| : failed)
    {
        const long team = omp_get_num_threads(), own = omp_get_thread_num();
        const long first = panels * own / team, end = panels * (own + 1) / team;
        float few[DIRECT_ROWS * PANEL] __attribute__((aligned(64)));
        float *acc = tiled ? aligned_alloc(64, sizeof(float) * m * PANEL) : NULL;
        failed |= tiled && acc == NULL;
        if (sums && tiled) {
#pragma omp for schedule(static)
            for (long r = 0; r < m; r++) sum_groups(x + r * k, groups, sums + r * groups);
        }
        for (long p = first; acc && p < end; p++) {
            many_rows(kind, w + p * bytes_of_panel, x, sums, m, k, acc);
            store(acc, (int)m, y, n, p * PANEL, bias);
        }
        for (long p = first; !tiled && p < end; p++)
            for (long r = 0; r < m; r += DIRECT_ROWS) {
                const int rows = m - r < DIRECT_ROWS ? (int)(m - r) : DIRECT_ROWS;
                DIRECTS[rows - 1](kind, w + p * bytes_of_panel, x + r * k, sums ? sums + r * groups : NULL, k, few);
                store(few, rows, y + r * n, n, p * PANEL, bias);
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
