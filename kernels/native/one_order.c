/* What comes between the products of a layer, in float32: every number depends on its own row only, by a bit.
 *
 * A row of a norm or of SiLU, and a token's attention under one head, is computed alone, by one function, which is not inlined: what the compiler
 * makes of its sums cannot depend on what is computed beside it. Rows and heads are shared out among threads.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <omp.h>
#include "lanes.h"

#define ALONE static __attribute__((noinline))
#define WIDE 4 /* vectors of a value that are summed up together */

INLINE float across(vf x)
{
    union { vf all; float one[LANES]; } part = {.all = x};
    UNROLL for (int width = LANES / 2; width > 0; width /= 2)
        UNROLL for (int i = 0; i < width; i++) part.one[i] += part.one[i + width];
    return part.one[0];
}

/* The first `count` < LANES of x, then zeros. */
INLINE vf some(const float *x, long count)
{
    union { vf all; float one[LANES]; } part = {.all = {0}};
    memcpy(part.one, x, sizeof(float) * count);
    return part.all;
}

INLINE float dot(const float *x, const float *y, long size)
{
    vf total = {0};
    long i = 0;
    for (; i + LANES <= size; i += LANES) total = madd(*(const vu *)(x + i), *(const vu *)(y + i), total);
    if (i < size) total = madd(some(x + i, size - i), some(y + i, size - i), total);
    return across(total);
}

INLINE vf pick(vi where, vf yes, vf no) { return (vf)((where & (vi)yes) | (~where & (vi)no)); }

/* e^x within 2e-7, for x in -87..88, else that of the nearer end. Coefficients: Cephes, expf. */
INLINE vf power(vf x)
{
    const vf low = every(-87.0f), high = every(88.0f);
    x = pick(x < low, low, x);
    x = pick(x > high, high, x);
    const vf scaled = x * 1.44269504088896341f;
    const vi whole = __builtin_convertvector(scaled + pick(scaled < 0, every(-0.5f), every(0.5f)), vi);
    const vf count = __builtin_convertvector(whole, vf);
    const vf r = x - count * 0.693359375f - count * -2.12194440e-4f;
    vf y = every(1.9875691500e-4f);
    y = madd(y, r, every(1.3981999507e-3f));
    y = madd(y, r, every(8.3334519073e-3f));
    y = madd(y, r, every(4.1665795894e-2f));
    y = madd(y, r, every(1.6666665459e-1f));
    y = madd(y, r, every(5.0000001201e-1f));
    y = madd(y, r * r, r) + 1.0f;
    return y * (vf)((whole + 127) << 23);
}

ALONE void norm_row(const float *x, const float *weight, float eps, float *y, long size)
{
    const float scale = 1.0f / sqrtf(dot(x, x, size) / (float)size + eps);
    for (long i = 0; i < size; i++) y[i] = x[i] * scale * weight[i];
}

/* y = silu(gate) * up of LANES numbers. */
ALONE void gate_lanes(const float *gate, const float *up, float *y)
{
    const vf x = *(const vu *)gate;
    *(vu *)y = x / (1.0f + power(-x)) * *(const vu *)up;
}

ALONE void gate_row(const float *gate, const float *up, float *y, long size)
{
    long i = 0;
    for (; i + LANES <= size; i += LANES) gate_lanes(gate + i, up + i, y + i);
    if (i < size) {
        const vf last_gate = some(gate + i, size - i), last_up = some(up + i, size - i);
        float out[LANES];
        gate_lanes((const float *)&last_gate, (const float *)&last_up, out);
        memcpy(y + i, out, sizeof(float) * (size - i));
    }
}

/* One layer's keys and values: blocks of `block` positions, [blocks][kv heads][block][size]; `table`: the blocks of one row of the batch. */
struct cache {
    const float *k, *v;
    const int64_t *table;
    long kv_heads, head, block, size;
};

INLINE long cell(const struct cache *c, long position)
{
    return ((c->table[position / c->block] * c->kv_heads + c->head) * c->block + position % c->block) * c->size;
}

/* WIDE * LANES numbers of the sum of values from `first` on, `high` of which there are. */
INLINE void mix(const struct cache *c, const float *weight, long low, long end, long first, long high, float *out)
{
    vf total[WIDE] = {0};
    for (long s = low; s < end;) {
        const float *v = c->v + cell(c, s) + first;
        const long stop = s + c->block - s % c->block < end ? s + c->block - s % c->block : end;
        for (; s < stop; s++, v += c->size) {
            UNROLL for (int i = 0; i < WIDE; i++)
                if ((i + 1) * LANES <= high) total[i] = madd(every(weight[s - low]), *(const vu *)(v + i * LANES), total[i]);
                else if (i * LANES < high) total[i] = madd(every(weight[s - low]), some(v + i * LANES, high - i * LANES), total[i]);
        }
    }
    memcpy(out, total, sizeof(float) * high);
}

/* Of one query over the keys at `low`..`end`, into out[size]. `weight` has room for them, rounded up to LANES. */
ALONE void attend_one(const struct cache *c, const float *q, long low, long end, float scale, float *weight, float *out)
{
    const long count = end - low, size = c->size;
    float best = -INFINITY;
    for (long s = low; s < end;) {
        const float *k = c->k + cell(c, s);
        const long stop = s + c->block - s % c->block < end ? s + c->block - s % c->block : end;
        for (; s < stop; s++, k += size) weight[s - low] = dot(q, k, size) * scale;
    }
    for (long i = 0; i < count; i++) best = weight[i] > best ? weight[i] : best;
    for (long i = count; i % LANES; i++) weight[i] = -INFINITY;
    vf sum = {0};
    for (long i = 0; i < count; i += LANES) {
        const vf x = *(const vf *)(weight + i);
        const vf w = pick(x == -INFINITY, (vf){0}, power(x - best));
        *(vf *)(weight + i) = w;
        sum += w;
    }
    for (long first = 0; first < size; first += WIDE * LANES)
        mix(c, weight, low, end, first, size - first < WIDE * LANES ? size - first : WIDE * LANES, out + first);
    const float total = across(sum);
    for (long d = 0; d < size; d++) out[d] /= total;
}

/* y[rows][size] = x / sqrt(mean(x^2) + eps) * weight of x[rows][size]. */
void pagewire_norm(const float *x, const float *weight, float *y, long rows, long size, float eps, int threads)
{
#pragma omp parallel for num_threads(threads) schedule(static)
    for (long r = 0; r < rows; r++) norm_row(x + r * size, weight, eps, y + r * size, size);
}

/* y[rows][size] = silu(gate) * up of gate_up[rows][2 size]. */
void pagewire_gate(const float *gate_up, float *y, long rows, long size, int threads)
{
#pragma omp parallel for num_threads(threads) schedule(static)
    for (long r = 0; r < rows; r++) gate_row(gate_up + 2 * r * size, gate_up + (2 * r + 1) * size, y + r * size, size);
}

/* Of q[tokens][heads][size] into `out` of the same form. Token t is at position[t] of the row slot[t] of table[rows][width], and sees the
 * `window` keys (0: all) that end there. 0, or 1 when there is no memory. */
int pagewire_attend(
    const float *q, const float *k, const float *v, const int64_t *table, const int64_t *slot, const int64_t *position, float *out,
    long tokens, long heads, long kv_heads, long block, long size, long width, long window, float scale, int threads)
{
    int failed = 0;
#pragma omp parallel num_threads(threads) reduction(| : failed)
    {
        float *weight = aligned_alloc(64, sizeof(float) * (width * block / 16 + 1) * 16);
        failed |= weight == NULL;
#pragma omp for schedule(dynamic)
        for (long item = 0; item < tokens * heads; item++) {
            const long t = tokens - 1 - item / heads, h = item % heads, end = position[t] + 1;
            const long low = window && end > window ? end - window : 0;
            const struct cache c = {k, v, table + slot[t] * width, kv_heads, h / (heads / kv_heads), block, size};
            if (weight) attend_one(&c, q + (t * heads + h) * size, low, end, scale, weight, out + (t * heads + h) * size);
        }
        free(weight);
    }
    return failed;
}
