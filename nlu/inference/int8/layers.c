/* The layers of a BERT encoder with int8 products, for packed sequences; called by layers.py, which has the names.

The arithmetic is that of linear.py: bytes of a row around 0 or from a least number on, exact sums
of products, scales in fp32. Attention, softmax, activation and norms are fp32. Every row and every sequence is
computed by itself in a fixed order, so its result has the same bits in any batch, on any number of threads, and on any
processor with these instructions: no operation is fused unless it is written so (-ffp-contract=off).

Comments name axes as Python does: T tokens, D width, I inputs, O outputs, L tokens of a sequence, E width of a head. */

#include <immintrin.h>
#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define LANES 16       /* numbers of a vector */
#define PANEL 64       /* outputs whose weights lie together: four vectors */
#define VECTORS 4      /* vectors of a panel */
#define TILE 6         /* rows whose sums are in registers at once: TILE * VECTORS, with VECTORS + 1 for operands */
#define QUERIES 8      /* queries whose scores are in registers at once, each with up to KEYS vectors */
#define KEYS 3
#define CHUNK_ROWS 128 /* rows that pass through all layers together, so that they stay in the cache */
#define LARGEST 127.0f
#define MIDDLE 128.0f
#define STEPS 255.0f
#define TINY 1e-30f
#define INLINE static inline __attribute__((always_inline))

/* sums += products of unsigned bytes and signed ones, by fours. As an intrinsic, compilers read the weights from memory for
each row again, and copy sums between registers and memory; it takes half as long again. */
#define ADD_PRODUCTS(sums, bytes, weights) __asm__("vpdpbusd %2, %1, %0" : "+v"(sums) : "v"(bytes), "v"(weights))

enum activation { GELU = 0, GELU_TANH = 1, RELU = 2 };

struct linear {
    const int8_t *packed;   /* (O / PANEL, I / 4, PANEL, 4), with zeros up to whole panels and fours */
    const float *scale;     /* (O), of a product, for a span of 1 */
    const float *bias;      /* (O) */
    const int32_t *zero;    /* (O), what a product of bytes starts from: the products of the byte of 0, negated */
    int64_t inputs, outputs;
    float lowest;           /* no input is below it */
    int32_t has_lowest;
};

struct norm {
    const float *weight, *bias;
    double eps;
};

struct layer {
    struct linear query, key_value, mixing, inner, outer;
    struct norm first, second;
    int64_t heads, head_width, activation;
};

/* --- vectors ------------------------------------------------------------------------------------------------------ */

INLINE int64_t up(int64_t count, int64_t to) { return (count + to - 1) / to * to; }
INLINE int64_t most(int64_t a, int64_t b) { return a > b ? a : b; }

INLINE __mmask16 mask_of(int64_t left) { return left >= LANES ? 0xffff : left <= 0 ? 0 : (__mmask16)((1u << left) - 1); }

/* In a fixed order, which compilers' own reductions do not promise. */
INLINE float sum_of(__m512 x) {
    __m256 a = _mm256_add_ps(_mm512_castps512_ps256(x), _mm512_extractf32x8_ps(x, 1));
    __m128 b = _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
    b = _mm_add_ps(b, _mm_movehl_ps(b, b));
    return _mm_cvtss_f32(_mm_add_ss(b, _mm_movehdup_ps(b)));
}

INLINE float max_of(__m512 x) {
    __m256 a = _mm256_max_ps(_mm512_castps512_ps256(x), _mm512_extractf32x8_ps(x, 1));
    __m128 b = _mm_max_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
    b = _mm_max_ps(b, _mm_movehl_ps(b, b));
    return _mm_cvtss_f32(_mm_max_ss(b, _mm_movehdup_ps(b)));
}

/* exp with a relative error of 1e-7: 2^n exp(r) for |r| <= ln(2) / 2; the coefficients are those of Cephes' expf.
   It needs whole powers of 2 that fp32 can tell apart. exp(-104) rounds to 0. NaN is the second operand, which max keeps. */
INLINE __m512 exp_of(__m512 x) {
    x = _mm512_max_ps(_mm512_set1_ps(-104.0f), x);
    const __m512 n = _mm512_roundscale_ps(_mm512_mul_ps(x, _mm512_set1_ps(1.44269504088896341f)), 8);
    __m512 r = _mm512_fnmadd_ps(n, _mm512_set1_ps(0.693359375f), x);
    r = _mm512_fnmadd_ps(n, _mm512_set1_ps(-2.12194440e-4f), r);
    __m512 p = _mm512_set1_ps(1.9875691500e-4f);
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(1.3981999507e-3f));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(8.3334519073e-3f));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(4.1665795894e-2f));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(1.6666665459e-1f));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(5.0000001201e-1f));
    p = _mm512_fmadd_ps(p, _mm512_mul_ps(r, r), _mm512_add_ps(r, _mm512_set1_ps(1.0f)));
    return _mm512_scalef_ps(p, n);
}

/* x (1 + erf(x / sqrt(2))) / 2; erf by 7.1.26 of Abramowitz and Stegun, with an absolute error of 1.5e-7. */
INLINE __m512 gelu_of(__m512 x) {
    const __m512 one = _mm512_set1_ps(1.0f), half = _mm512_set1_ps(0.5f);
    const __m512 z = _mm512_abs_ps(_mm512_mul_ps(x, _mm512_set1_ps(0.70710678118654752f)));
    const __m512 t = _mm512_div_ps(one, _mm512_fmadd_ps(z, _mm512_set1_ps(0.3275911f), one));
    __m512 p = _mm512_set1_ps(1.061405429f);
    p = _mm512_fmadd_ps(p, t, _mm512_set1_ps(-1.453152027f));
    p = _mm512_fmadd_ps(p, t, _mm512_set1_ps(1.421413741f));
    p = _mm512_fmadd_ps(p, t, _mm512_set1_ps(-0.284496736f));
    p = _mm512_mul_ps(_mm512_fmadd_ps(p, t, _mm512_set1_ps(0.254829592f)), t);
    /* (1 - erf(z)) / 2 */
    const __m512 tail = _mm512_mul_ps(_mm512_mul_ps(p, half), exp_of(_mm512_sub_ps(_mm512_setzero_ps(), _mm512_mul_ps(z, z))));
    const __mmask16 is_negative = _mm512_cmp_ps_mask(x, _mm512_setzero_ps(), _CMP_LT_OQ);
    return _mm512_mul_ps(x, _mm512_mask_blend_ps(is_negative, _mm512_sub_ps(one, tail), tail));
}

/* x / (1 + exp(-2 u)), which is x (1 + tanh(u)) / 2, for u = sqrt(2 / pi) (x + 0.044715 x^3) */
INLINE __m512 gelu_tanh_of(__m512 x) {
    const __m512 square = _mm512_mul_ps(x, x);
    const __m512 factor = _mm512_fmadd_ps(square, _mm512_set1_ps(-2 * 0.79788456080286536f * 0.044715f),
                                          _mm512_set1_ps(-2 * 0.79788456080286536f));
    const __m512 power = exp_of(_mm512_min_ps(_mm512_mul_ps(x, factor), _mm512_set1_ps(88.0f)));
    return _mm512_div_ps(x, _mm512_add_ps(power, _mm512_set1_ps(1.0f)));
}

/* --- bytes of rows ------------------------------------------------------------------------------------------------ */

/* Write the bytes of a row for a linear layer and return its span, not a number if one of the row is not finite. */
INLINE float to_bytes(const float *row, const struct linear *to, uint8_t *bytes) {
    const int64_t width = to->inputs;
    const __m512 zero = _mm512_setzero_ps();
    __m512 most = to->has_lowest ? _mm512_set1_ps(to->lowest) : zero, strange = zero;
    for (int64_t i = 0; i < width; i += LANES) {
        const __mmask16 mask = mask_of(width - i);
        const __m512 x = _mm512_maskz_loadu_ps(mask, row + i);
        strange = _mm512_fmadd_ps(x, zero, strange);
        most = _mm512_mask_max_ps(most, mask, most, to->has_lowest ? x : _mm512_abs_ps(x));
    }
    float span = max_of(most) - (to->has_lowest ? to->lowest : 0.0f);
    span = (span > TINY ? span : TINY);
    const float per_step = (to->has_lowest ? STEPS : LARGEST) / span;
    const __m512 factor = _mm512_set1_ps(per_step);
    const __m512 first = _mm512_set1_ps(to->has_lowest ? per_step * -to->lowest : MIDDLE);
    for (int64_t i = 0; i < width; i += LANES) {
        const __mmask16 mask = mask_of(width - i);
        const __m512 x = _mm512_maskz_loadu_ps(mask, row + i);
        __m512i whole;
        if (to->has_lowest) {
            whole = _mm512_cvtps_epi32(_mm512_max_ps(_mm512_fmadd_ps(x, factor, first), zero));
        } else {
            whole = _mm512_add_epi32(_mm512_cvtps_epi32(_mm512_mul_ps(x, factor)), _mm512_set1_epi32((int)MIDDLE));
        }
        _mm512_mask_cvtusepi32_storeu_epi8(bytes + i, mask, whole);
    }
    return span + sum_of(strange);
}

/* --- products ----------------------------------------------------------------------------------------------------- */

/* One panel of outputs for `count` rows: (span scale) (bytes V') + bias. */
INLINE void tile_of(const int count, const uint8_t *bytes, int64_t stride, const float *span, const struct linear *by,
                    int64_t panel, float *out, int64_t out_stride) {
    const int64_t fours = (by->inputs + 3) / 4, output = panel * PANEL;
    const int8_t *weights = by->packed + panel * fours * PANEL * 4;
    __m512i sums[TILE][VECTORS];
    __mmask16 masks[VECTORS];
#pragma GCC unroll 4
    for (int v = 0; v < VECTORS; v++) {
        masks[v] = mask_of(by->outputs - output - v * LANES);
        const __m512i zero = _mm512_maskz_loadu_epi32(masks[v], by->zero + output + v * LANES);
#pragma GCC unroll 6
        for (int r = 0; r < count; r++) sums[r][v] = zero;
    }
    for (int64_t k = 0; k < fours; k++, weights += PANEL * 4) {
        __m512i w[VECTORS];
#pragma GCC unroll 4
        for (int v = 0; v < VECTORS; v++) w[v] = _mm512_loadu_si512(weights + v * 64);
#pragma GCC unroll 6
        for (int r = 0; r < count; r++) {
            int32_t four;
            memcpy(&four, bytes + r * stride + k * 4, 4);
            const __m512i a = _mm512_set1_epi32(four);
#pragma GCC unroll 4
            for (int v = 0; v < VECTORS; v++) ADD_PRODUCTS(sums[r][v], a, w[v]);
        }
    }
#pragma GCC unroll 4
    for (int v = 0; v < VECTORS; v++) {
        if (!masks[v]) continue;
        const __m512 scale = _mm512_maskz_loadu_ps(masks[v], by->scale + output + v * LANES);
        const __m512 bias = _mm512_maskz_loadu_ps(masks[v], by->bias + output + v * LANES);
#pragma GCC unroll 6
        for (int r = 0; r < count; r++) {
            const __m512 product = _mm512_mul_ps(_mm512_cvtepi32_ps(sums[r][v]), scale);
            const __m512 found = _mm512_fmadd_ps(product, _mm512_set1_ps(span[r]), bias);
            _mm512_mask_storeu_ps(out + r * out_stride + output + v * LANES, masks[v], found);
        }
    }
}

static void product_of(const uint8_t *bytes, int64_t stride, const float *span, int64_t rows, const struct linear *by,
                       float *out, int64_t out_stride) {
    const int64_t panels = (by->outputs + PANEL - 1) / PANEL;
    for (int64_t panel = 0; panel < panels; panel++) {
        int64_t r = 0;
        for (; r + TILE <= rows; r += TILE)
            tile_of(TILE, bytes + r * stride, stride, span + r, by, panel, out + r * out_stride, out_stride);
        const uint8_t *b = bytes + r * stride;
        float *o = out + r * out_stride;
        switch (rows - r) {
        case 5: tile_of(5, b, stride, span + r, by, panel, o, out_stride); break;
        case 4: tile_of(4, b, stride, span + r, by, panel, o, out_stride); break;
        case 3: tile_of(3, b, stride, span + r, by, panel, o, out_stride); break;
        case 2: tile_of(2, b, stride, span + r, by, panel, o, out_stride); break;
        case 1: tile_of(1, b, stride, span + r, by, panel, o, out_stride); break;
        }
    }
}

/* --- between the products ----------------------------------------------------------------------------------------- */

/* Layer norm of `row`, plus `added` unless that is null, in place. */
INLINE void normalize(float *row, const float *added, const struct norm *by, int64_t width) {
    __m512 sum = _mm512_setzero_ps();
    for (int64_t i = 0; i < width; i += LANES) {
        const __mmask16 mask = mask_of(width - i);
        __m512 x = _mm512_maskz_loadu_ps(mask, row + i);
        if (added) {
            x = _mm512_add_ps(x, _mm512_maskz_loadu_ps(mask, added + i));
            _mm512_mask_storeu_ps(row + i, mask, x);
        }
        sum = _mm512_add_ps(sum, x);
    }
    const __m512 mean = _mm512_set1_ps(sum_of(sum) / (float)width);
    __m512 squares = _mm512_setzero_ps();
    for (int64_t i = 0; i < width; i += LANES) {
        const __mmask16 mask = mask_of(width - i);
        const __m512 x = _mm512_maskz_sub_ps(mask, _mm512_maskz_loadu_ps(mask, row + i), mean);
        squares = _mm512_fmadd_ps(x, x, squares);
    }
    const __m512 factor = _mm512_set1_ps((float)(1.0 / sqrt((double)(sum_of(squares) / (float)width) + by->eps)));
    for (int64_t i = 0; i < width; i += LANES) {
        const __mmask16 mask = mask_of(width - i);
        const __m512 x = _mm512_sub_ps(_mm512_maskz_loadu_ps(mask, row + i), mean);
        const __m512 weight = _mm512_maskz_loadu_ps(mask, by->weight + i), bias = _mm512_maskz_loadu_ps(mask, by->bias + i);
        _mm512_mask_storeu_ps(row + i, mask, _mm512_fmadd_ps(_mm512_mul_ps(x, factor), weight, bias));
    }
}

INLINE void activate(float *row, int64_t width, int64_t activation) {
    for (int64_t i = 0; i < width; i += LANES) {
        const __mmask16 mask = mask_of(width - i);
        __m512 x = _mm512_maskz_loadu_ps(mask, row + i);
        if (activation == GELU) x = gelu_of(x);
        else if (activation == GELU_TANH) x = gelu_tanh_of(x);
        /* The second operand is the result for what is not a number. */
        else x = _mm512_max_ps(_mm512_setzero_ps(), x);
        _mm512_mask_storeu_ps(row + i, mask, x);
    }
}

/* --- attention ---------------------------------------------------------------------------------------------------- */

/* Write the keys of a head as columns, (E, up(L, 16)), with zeros after the last one. */
static void lay_keys(const float *key, int64_t stride, int64_t length, int64_t width, int64_t padded, float *keys_EL) {
    memset(keys_EL, 0, width * padded * sizeof *keys_EL);
    for (int64_t l = 0; l < length; l++)
        for (int64_t e = 0; e < width; e++) keys_EL[e * padded + l] = key[l * stride + e];
}

/* Write the sums over `depth` of left (count, depth) times right (depth, vectors * LANES). */
INLINE void products_of(const int count, const int vectors, const float *const *left, int64_t depth, const float *right,
                        int64_t right_stride, float *out, int64_t out_stride) {
    __m512 sums[QUERIES][KEYS];
#pragma GCC unroll 8
    for (int i = 0; i < count; i++)
#pragma GCC unroll 3
        for (int v = 0; v < vectors; v++) sums[i][v] = _mm512_setzero_ps();
    for (int64_t d = 0; d < depth; d++) {
        __m512 x[KEYS];
#pragma GCC unroll 3
        for (int v = 0; v < vectors; v++) x[v] = _mm512_loadu_ps(right + d * right_stride + v * LANES);
#pragma GCC unroll 8
        for (int i = 0; i < count; i++) {
            const __m512 one = _mm512_set1_ps(left[i][d]);
#pragma GCC unroll 3
            for (int v = 0; v < vectors; v++) sums[i][v] = _mm512_fmadd_ps(one, x[v], sums[i][v]);
        }
    }
#pragma GCC unroll 8
    for (int i = 0; i < count; i++)
#pragma GCC unroll 3
        for (int v = 0; v < vectors; v++) _mm512_storeu_ps(out + i * out_stride + v * LANES, sums[i][v]);
}

/* The same for any number of vectors. */
INLINE void all_products_of(const int count, const float *const *left, int64_t depth, const float *right, int64_t wide,
                            float *out) {
    int64_t at = 0;
    for (; at + KEYS * LANES <= wide; at += KEYS * LANES)
        products_of(count, KEYS, left, depth, right + at, wide, out + at, wide);
    if (wide - at == 2 * LANES) products_of(count, 2, left, depth, right + at, wide, out + at, wide);
    else if (wide - at == LANES) products_of(count, 1, left, depth, right + at, wide, out + at, wide);
}

/* For `count` scores of each query: exp((score - the largest one) / sqrt(E)) in their place; return the sum. */
INLINE float powers_of(float *scores, int64_t count, __m512 scale) {
    __m512 most = _mm512_set1_ps(-INFINITY), sum = _mm512_setzero_ps();
    for (int64_t l = 0; l < count; l += LANES)
        most = _mm512_mask_max_ps(most, mask_of(count - l), most, _mm512_loadu_ps(scores + l));
    const __m512 top = _mm512_set1_ps(max_of(most));
    for (int64_t l = 0; l < count; l += LANES) {
        const __m512 x = exp_of(_mm512_mul_ps(_mm512_sub_ps(_mm512_loadu_ps(scores + l), top), scale));
        sum = _mm512_mask_add_ps(sum, mask_of(count - l), sum, x);
        _mm512_storeu_ps(scores + l, x);
    }
    return sum_of(sum);
}

/* softmax(q k / sqrt(E)) v for the queries from `query` on; a row that is missing repeats the last one. */
INLINE void attend_some(const int tile, const float *query, int64_t query_stride, int64_t count, const float *keys_EL,
                        const float *values_LE, int64_t length, int64_t width, float *out, int64_t out_stride,
                        float *scores) {
    const int64_t padded = up(length, LANES), wide = up(width, LANES);
    const __m512 scale = _mm512_set1_ps(1.0f / sqrtf((float)width));
    const float *rows[QUERIES], *weights[QUERIES];
    float totals[QUERIES], *mixed = scores + tile * padded;
    for (int i = 0; i < tile; i++) {
        rows[i] = query + (i < count ? i : count - 1) * query_stride;
        weights[i] = scores + i * padded;
    }
    all_products_of(tile, rows, width, keys_EL, padded, scores);
    for (int i = 0; i < tile && i < count; i++) totals[i] = powers_of(scores + i * padded, length, scale);
    all_products_of(tile, weights, length, values_LE, wide, mixed);
    for (int i = 0; i < tile && i < count; i++) {
        const __m512 total = _mm512_set1_ps(totals[i]);
        for (int64_t e = 0; e < width; e += LANES)
            _mm512_mask_storeu_ps(out + i * out_stride + e, mask_of(width - e),
                                  _mm512_div_ps(_mm512_loadu_ps(mixed + i * wide + e), total));
    }
}

/* What `attend` needs, in numbers. */
INLINE int64_t room_to_attend(int64_t length, int64_t width) {
    return up(length, LANES) * (width + QUERIES) + (length + QUERIES) * up(width, LANES);
}

/* softmax(q k / sqrt(E)) v of one head and sequence, for the first `queries` of its tokens. Strides are between tokens. */
static void attend(const float *query, int64_t query_stride, const float *key, const float *value, int64_t stride,
                   int64_t length, int64_t queries, int64_t width, float *out, int64_t out_stride, float *room) {
    const int64_t padded = up(length, LANES), wide = up(width, LANES);
    float *keys_EL = room, *values_LE = keys_EL + width * padded, *scores = values_LE + length * wide;
    lay_keys(key, stride, length, width, padded, keys_EL);
    for (int64_t l = 0; l < length; l++)
        for (int64_t e = 0; e < wide; e += LANES)
            _mm512_storeu_ps(values_LE + l * wide + e, _mm512_maskz_loadu_ps(mask_of(width - e), value + l * stride + e));
    if (queries == 1) {
        attend_some(1, query, query_stride, 1, keys_EL, values_LE, length, width, out, out_stride, scores);
        return;
    }
    for (int64_t first = 0; first < queries; first += QUERIES)
        attend_some(QUERIES, query + first * query_stride, query_stride, queries - first, keys_EL, values_LE, length,
                    width, out + first * out_stride, out_stride, scores);
}

/* --- layers ------------------------------------------------------------------------------------------------------- */

/* What a chunk needs beside its result; rows of bytes are padded to whole vectors. */
struct room {
    float *hidden, *projected, *mixed, *inner, *span, *attention;
    uint8_t *bytes;
    int64_t bytes_stride;
};

INLINE void *take(char **at, int64_t size) {
    char *found = *at;
    *at += up(size, 64);
    return found;
}

/* Lay the room out in `memory`, at an address that 64 divides; return its size. */
static int64_t lay_out(struct room *room, char *memory, const struct layer *layers, int64_t count, int64_t rows,
                       int64_t longest) {
    const int64_t width = layers[0].mixing.outputs, inner = layers[0].inner.outputs, head = layers[0].head_width;
    int64_t wide = 0; /* layers may lack heads */
    for (int64_t n = 0; n < count; n++) wide = most(wide, layers[n].query.outputs);
    char *at = memory;
    room->hidden = take(&at, rows * width * 4);
    room->projected = take(&at, rows * 3 * wide * 4);
    room->mixed = take(&at, rows * most(wide, width) * 4);
    room->inner = take(&at, rows * most(wide, inner) * 4);
    room->span = take(&at, rows * 4);
    room->attention = take(&at, room_to_attend(longest, head) * 4);
    room->bytes_stride = up(most(most(width, wide), inner), 64);
    room->bytes = take(&at, rows * room->bytes_stride + 64);
    return at - memory;
}

static void quantize_rows(const float *rows, int64_t stride, int64_t count, const struct linear *to, struct room *room) {
    for (int64_t r = 0; r < count; r++)
        room->span[r] = to_bytes(rows + r * stride, to, room->bytes + r * room->bytes_stride);
}

/* One layer for the rows of some sequences; with `first_only` the result is that of their first tokens. */
static void one_layer(const struct layer *own, struct room *room, const int32_t *lengths, int64_t sequences,
                      int64_t rows, int first_only) {
    const int64_t width = own->mixing.outputs, wide = own->query.outputs, step = 3 * wide;
    const int64_t asking = first_only ? sequences : rows;
    quantize_rows(room->hidden, width, rows, &own->key_value, room);
    product_of(room->bytes, room->bytes_stride, room->span, rows, &own->key_value, room->projected + wide, step);
    if (first_only) {
        /* The rows of first tokens move to the front; none is overwritten before it is read. */
        int64_t start = 0;
        for (int64_t s = 0; s < sequences; start += lengths[s], s++) {
            memmove(room->bytes + s * room->bytes_stride, room->bytes + start * room->bytes_stride, room->bytes_stride);
            memmove(room->hidden + s * width, room->hidden + start * width, width * 4);
            room->span[s] = room->span[start];
        }
        /* Their queries lie in `inner`, since `projected` has a row for each token. */
    }
    float *queries = first_only ? room->inner : room->projected;
    const int64_t query_step = first_only ? wide : step;
    product_of(room->bytes, room->bytes_stride, room->span, asking, &own->query, queries, query_step);
    int64_t start = 0;
    for (int64_t s = 0; s < sequences; start += lengths[s], s++) {
        const int64_t from = first_only ? s : start;
        for (int64_t head = 0; head < own->heads; head++) {
            const int64_t column = head * own->head_width;
            const float *projected = room->projected + start * step + wide + column;
            attend(queries + from * query_step + column, query_step, projected, projected + wide, step, lengths[s],
                   first_only ? 1 : lengths[s], own->head_width, room->mixed + from * wide + column, wide,
                   room->attention);
        }
    }
    quantize_rows(room->mixed, wide, asking, &own->mixing, room);
    float *sums = room->mixed;
    product_of(room->bytes, room->bytes_stride, room->span, asking, &own->mixing, sums, width);
    for (int64_t r = 0; r < asking; r++) normalize(sums + r * width, room->hidden + r * width, &own->first, width);
    quantize_rows(sums, width, asking, &own->inner, room);
    product_of(room->bytes, room->bytes_stride, room->span, asking, &own->inner, room->inner, own->inner.outputs);
    for (int64_t r = 0; r < asking; r++) {
        float *row = room->inner + r * own->inner.outputs;
        activate(row, own->inner.outputs, own->activation);
        room->span[r] = to_bytes(row, &own->outer, room->bytes + r * room->bytes_stride);
    }
    product_of(room->bytes, room->bytes_stride, room->span, asking, &own->outer, room->hidden, width);
    for (int64_t r = 0; r < asking; r++) normalize(room->hidden + r * width, sums + r * width, &own->second, width);
}

/* The norm of each of `count` rows, in place. */
void nlu_int8_norm(float *rows, const struct norm *by, int64_t count, int64_t width) {
    for (int64_t t = 0; t < count; t++) normalize(rows + t * width, 0, by, width);
}

/* Write the last layer's vectors of all tokens, (T, D), or with `first_only` of the first token of each sequence. Return
   0, or 1 if there is too little memory. */
int32_t nlu_int8_layers(const struct layer *layers, int64_t count, const float *hidden, float *out,
                        const int32_t *lengths, int64_t sequences, int64_t longest, int32_t first_only) {
    struct room room;
    const int64_t most_rows = most(CHUNK_ROWS, longest), width = layers[0].mixing.outputs;
    char *memory = aligned_alloc(64, lay_out(&room, 0, layers, count, most_rows, longest));
    if (!memory) return 1;
    lay_out(&room, memory, layers, count, most_rows, longest);
    for (int64_t begin = 0; begin < sequences;) {
        int64_t end = begin, rows = 0;
        do rows += lengths[end++];
        while (end < sequences && rows + lengths[end] <= CHUNK_ROWS);
        memcpy(room.hidden, hidden, rows * width * 4);
        for (int64_t n = 0; n < count; n++)
            one_layer(&layers[n], &room, lengths + begin, end - begin, rows, first_only && n + 1 == count);
        const int64_t found = first_only ? end - begin : rows;
        memcpy(out, room.hidden, found * width * 4);
        out += found * width;
        hidden += rows * width;
        begin = end;
    }
    free(memory);
    return 0;
}
