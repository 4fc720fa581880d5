/* Attention of packed sequences with both of its passes, for training; called by training_kernels.py, which has the names.

    weights = softmax(query key' / sqrt(E)), mixed = (weights * mask) value

Products multiply fp32, or pairs of bf16 that are summed in fp32; softmax, dropout and its gradient are fp32. Sequences
are neither padded nor gathered. Each sequence and head is computed by itself in a fixed order, so its results have the
same bits in any batch, on any number of threads: no operation is fused unless it is written so (-ffp-contract=off).

A unit is what a product takes from a row at once: one fp32 number, or two of bf16; both have 32 bits.
Comments name axes as Python does: S sequences, H heads, Q queries of a sequence, L its keys, E width of a head. */

#include <math.h>
#include <stdint.h>
#include <string.h>

#include "vectors.h"

#define TILE 6    /* rows whose sums are in registers at once; even, since rows become pairs */
#define VECTORS 4 /* vectors of each of these rows */
#define STEP 8    /* random numbers are drawn for lengths up to a multiple of it, as by nlu/models/layers/attention.py */

struct attention {
    const int32_t *lengths; /* (S) */
    int64_t begin, end;     /* the sequences to compute */
    int64_t heads, width;   /* width: even in bf16 */
    int32_t is_bf16;
    int32_t first_only;     /* one query for each sequence instead of one for each token */
    const char *query, *key, *value;
    int64_t query_row, row; /* bytes from a token to the next one; key and value share rows */
    const uint16_t *bits;   /* random numbers, (H, up(Q), up(L)) for each sequence; null: no dropout */
    uint32_t least;         /* a weight stays if its random number is not below it */
    float kept;             /* factor of weights that stay */
    char *weights;          /* (H, Q, up(L, LANES)) for each sequence, before dropout; negative if it zeroes them */
    char *mixed;            /* written by the forward pass */
    const char *gradient;   /* of `mixed`, read by the backward pass */
    int64_t mixed_row;      /* bytes from a token to the next one in both */
    char *to_query, *to_key, *to_value; /* gradients, in rows as their arguments */
    float *room;
};

INLINE int64_t units_of(const int is_bf16, int64_t count) { return is_bf16 ? (count + 1) / 2 : count; }

/* --- numbers in memory -------------------------------------------------------------------------------------------- */

/* One number of each of 16 columns from two rows: the first ones are the lower halves. */
INLINE __m512 paired(__m256i first, __m256i second) {
    return _mm512_castsi512_ps(
        _mm512_or_si512(_mm512_cvtepu16_epi32(first), _mm512_slli_epi32(_mm512_cvtepu16_epi32(second), 16)));
}

/* Write units along the rows: (units of E, up(count, LANES)), with zeros after the last row. */
INLINE void lay_columns(const int is_bf16, const char *from, int64_t row, int64_t count, int64_t width, float *to) {
    const int64_t padded = up(count, LANES), units = units_of(is_bf16, width);
    for (int64_t l = 0; l < padded; l += LANES)
        for (int64_t u = 0; u < units; u += LANES) {
            __m512 x[LANES];
#pragma GCC unroll 16
            for (int i = 0; i < LANES; i++) {
                const char *at = from + (l + i) * row + u * 4;
                if (l + i >= count) x[i] = _mm512_setzero_ps();
                else if (is_bf16) {
                    const int64_t left = width - 2 * u;
                    const __mmask32 mask = left >= 32 ? 0xffffffffu : (1u << left) - 1;
                    x[i] = _mm512_castsi512_ps(_mm512_maskz_loadu_epi16(mask, at));
                } else x[i] = _mm512_maskz_loadu_ps(mask_of(width - u), at);
            }
            transpose(x);
#pragma GCC unroll 16
            for (int i = 0; i < LANES; i++)
                if (u + i < units) _mm512_storeu_ps(to + (u + i) * padded + l, x[i]);
        }
}

/* Write units across the rows: (units of the rows, up(E, LANES)), with zeros after the last row and column. */
INLINE void lay_rows(const int is_bf16, const char *from, int64_t row, int64_t count, int64_t width, float *to) {
    const int64_t padded = up(width, LANES);
    for (int64_t l = 0; l < count; l += is_bf16 ? 2 : 1, to += padded)
        for (int64_t e = 0; e < width; e += LANES) {
            const __mmask16 mask = mask_of(width - e);
            const char *at = from + l * row + e * size_of(is_bf16);
            if (is_bf16) {
                const __m256i first = _mm256_maskz_loadu_epi16(mask, at);
                _mm512_storeu_ps(to + e, paired(first, _mm256_maskz_loadu_epi16(l + 1 < count ? mask : 0, at + row)));
            } else _mm512_storeu_ps(to + e, _mm512_maskz_loadu_ps(mask, at));
        }
}

/* --- products ----------------------------------------------------------------------------------------------------- */

/* out[r] = sum over units u of left[r][u] * right[u], for a few rows and vectors. */
INLINE void tile_of(const int is_bf16, const int rows, const int vectors, const char *left, int64_t left_row,
                    int64_t left_unit, int64_t units, const float *right, int64_t right_row, float *out,
                    int64_t out_row) {
    __m512 sums[TILE][VECTORS];
#pragma GCC unroll 6
    for (int r = 0; r < rows; r++)
#pragma GCC unroll 4
        for (int v = 0; v < vectors; v++) sums[r][v] = _mm512_setzero_ps();
    for (int64_t u = 0; u < units; u++) {
        __m512 x[VECTORS];
#pragma GCC unroll 4
        for (int v = 0; v < vectors; v++) x[v] = _mm512_loadu_ps(right + u * right_row + v * LANES);
#pragma GCC unroll 6
        for (int r = 0; r < rows; r++) {
            int32_t unit;
            memcpy(&unit, left + r * left_row + u * left_unit, 4);
            const __m512i all = _mm512_set1_epi32(unit);
#pragma GCC unroll 4
            for (int v = 0; v < vectors; v++)
                sums[r][v] = is_bf16 ? _mm512_dpbf16_ps(sums[r][v], (__m512bh)all, (__m512bh)x[v])
                                     : _mm512_fmadd_ps(_mm512_castsi512_ps(all), x[v], sums[r][v]);
        }
    }
#pragma GCC unroll 6
    for (int r = 0; r < rows; r++)
#pragma GCC unroll 4
        for (int v = 0; v < vectors; v++) _mm512_storeu_ps(out + r * out_row + v * LANES, sums[r][v]);
}

INLINE void rows_of(const int is_bf16, const int rows, const char *left, int64_t left_row, int64_t left_unit,
                    int64_t units, const float *right, int64_t columns, float *out) {
    int64_t c = 0;
    for (; c + VECTORS * LANES <= columns; c += VECTORS * LANES)
        tile_of(is_bf16, rows, 4, left, left_row, left_unit, units, right + c, columns, out + c, columns);
    switch ((columns - c) / LANES) {
    case 3: tile_of(is_bf16, rows, 3, left, left_row, left_unit, units, right + c, columns, out + c, columns); break;
    case 2: tile_of(is_bf16, rows, 2, left, left_row, left_unit, units, right + c, columns, out + c, columns); break;
    case 1: tile_of(is_bf16, rows, 1, left, left_row, left_unit, units, right + c, columns, out + c, columns); break;
    }
}

/* out (rows, columns) = left times right (units, columns), for up to TILE rows; columns: a multiple of LANES. */
INLINE void product_of(const int is_bf16, int64_t rows, const char *left, int64_t left_row, int64_t left_unit,
                       int64_t units, const float *right, int64_t columns, float *out) {
    switch (rows) {
    case 6: rows_of(is_bf16, 6, left, left_row, left_unit, units, right, columns, out); break;
    case 5: rows_of(is_bf16, 5, left, left_row, left_unit, units, right, columns, out); break;
    case 4: rows_of(is_bf16, 4, left, left_row, left_unit, units, right, columns, out); break;
    case 3: rows_of(is_bf16, 3, left, left_row, left_unit, units, right, columns, out); break;
    case 2: rows_of(is_bf16, 2, left, left_row, left_unit, units, right, columns, out); break;
    case 1: rows_of(is_bf16, 1, left, left_row, left_unit, units, right, columns, out); break;
    }
}

/* --- where things are --------------------------------------------------------------------------------------------- */

/* One head of one sequence. */
struct head {
    int64_t queries, length, width;
    const char *query, *key, *value, *gradient;
    char *mixed, *weights, *to_query, *to_key, *to_value;
    const uint16_t *bits;
};

INLINE int64_t queries_of(const struct attention *a, int64_t length) { return a->first_only ? 1 : length; }

/* Numbers of `weights`, and random numbers, of a head. */
INLINE int64_t weights_of(const struct attention *a, int64_t length) {
    return queries_of(a, length) * up(length, LANES);
}
INLINE int64_t bits_of(const struct attention *a, int64_t length) {
    return (a->first_only ? 1 : up(length, STEP)) * up(length, STEP);
}

/* `token`, `weights` and `bits`: where those of the sequence begin. */
INLINE struct head head_of(const struct attention *a, const int is_bf16, int64_t sequence, int64_t token,
                           int64_t weights, int64_t bits, int64_t h) {
    const int64_t size = size_of(is_bf16), length = a->lengths[sequence], own = h * a->width * size;
    const int64_t asking = a->first_only ? sequence : token;
    return (struct head){
        .queries = queries_of(a, length), .length = length, .width = a->width,
        .query = a->query + asking * a->query_row + own,
        .key = a->key + token * a->row + own, .value = a->value + token * a->row + own,
        .gradient = a->gradient + asking * a->mixed_row + own, .mixed = a->mixed + asking * a->mixed_row + own,
        .weights = a->weights + (weights + h * weights_of(a, length)) * size,
        .to_query = a->to_query + asking * a->query_row + own,
        .to_key = a->to_key + token * a->row + own, .to_value = a->to_value + token * a->row + own,
        .bits = a->bits ? a->bits + bits + h * bits_of(a, length) : 0,
    };
}

/* --- forward ------------------------------------------------------------------------------------------------------ */

/* Turn scores into weights, in their place: softmax(scale scores). */
INLINE void softmax(float *scores, int64_t length, __m512 scale) {
    __m512 top = _mm512_set1_ps(-INFINITY), sum = _mm512_setzero_ps();
    for (int64_t l = 0; l < length; l += LANES)
        top = _mm512_mask_max_ps(top, mask_of(length - l), top, _mm512_loadu_ps(scores + l));
    top = _mm512_set1_ps(max_of(top));
    for (int64_t l = 0; l < length; l += LANES) {
        const __m512 difference = _mm512_sub_ps(_mm512_loadu_ps(scores + l), top);
        const __m512 x = _mm512_maskz_mov_ps(mask_of(length - l), exp_of(_mm512_mul_ps(difference, scale)));
        sum = _mm512_add_ps(sum, x);
        _mm512_storeu_ps(scores + l, x);
    }
    const __m512 factor = _mm512_set1_ps(1.0f / sum_of(sum));
    for (int64_t l = 0; l < length; l += LANES)
        _mm512_storeu_ps(scores + l, _mm512_mul_ps(_mm512_loadu_ps(scores + l), factor));
}

/* Write the weights of a query with the marks of dropout, and what dropout leaves of them. */
INLINE void drop(const int is_bf16, const float *weights, int64_t length, const uint16_t *bits, uint32_t least,
                 char *marked, char *dropped) {
    const __m512 sign = _mm512_set1_ps(-0.0f);
    for (int64_t l = 0; l < length; l += LANES) {
        const __mmask16 mask = mask_of(length - l);
        __mmask16 stays = 0xffff;
        if (bits)
            stays = _mm512_cmpge_epu32_mask(_mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(mask, bits + l)),
                                            _mm512_set1_epi32((int)least));
        const __m512 x = _mm512_loadu_ps(weights + l);
        store(is_bf16, marked + l * size_of(is_bf16), 0xffff, _mm512_mask_or_ps(x, (__mmask16)~stays, x, sign));
        store(is_bf16, dropped + l * size_of(is_bf16), 0xffff, _mm512_maskz_mov_ps(stays, x));
    }
}

INLINE void forward_of(const int is_bf16, const struct attention *a, const struct head *h) {
    const int64_t size = size_of(is_bf16), padded = up(h->length, LANES), columns = up(h->width, LANES);
    float *keys = a->room, *values = keys + units_of(is_bf16, h->width) * padded;
    float *scores = values + units_of(is_bf16, h->length) * columns, *dropped = scores + TILE * padded;
    float *mixed = dropped + TILE * padded;
    const __m512 scale = _mm512_set1_ps(1.0f / sqrtf((float)h->width)), kept = _mm512_set1_ps(a->kept);
    lay_columns(is_bf16, h->key, a->row, h->length, h->width, keys);
    lay_rows(is_bf16, h->value, a->row, h->length, h->width, values);
    for (int64_t q = 0; q < h->queries; q += TILE) {
        const int64_t count = h->queries - q < TILE ? h->queries - q : TILE;
        product_of(is_bf16, count, h->query + q * a->query_row, a->query_row, 4, units_of(is_bf16, h->width), keys,
                   padded, scores);
        for (int64_t i = 0; i < count; i++) {
            softmax(scores + i * padded, h->length, scale);
            drop(is_bf16, scores + i * padded, h->length, h->bits ? h->bits + (q + i) * up(h->length, STEP) : 0,
                 a->least, h->weights + (q + i) * padded * size, (char *)dropped + i * padded * size);
        }
        product_of(is_bf16, count, (char *)dropped, padded * size, 4, units_of(is_bf16, h->length), values, columns,
                   mixed);
        for (int64_t i = 0; i < count; i++)
            for (int64_t e = 0; e < h->width; e += LANES)
                store(is_bf16, h->mixed + (q + i) * a->mixed_row + e * size, mask_of(h->width - e),
                      _mm512_mul_ps(_mm512_loadu_ps(mixed + i * columns + e), kept));
    }
}

/* --- backward ----------------------------------------------------------------------------------------------------- */

INLINE __mmask16 that_stay(__m512 marked) { return (__mmask16)~_mm512_movepi32_mask(_mm512_castps_si512(marked)); }

/* Gradients of the scores of a query in the place of those of its dropped weights, without the factors of both. */
INLINE void to_scores(const int is_bf16, float *gradient, const char *weights, int64_t padded) {
    const int64_t size = size_of(is_bf16);
    __m512 sum = _mm512_setzero_ps();
    for (int64_t l = 0; l < padded; l += LANES) {
        const __m512 x = load(is_bf16, 0xffff, weights + l * size);
        sum = _mm512_mask3_fmadd_ps(x, _mm512_loadu_ps(gradient + l), sum, that_stay(x));
    }
    const __m512 mean = _mm512_set1_ps(sum_of(sum));
    for (int64_t l = 0; l < padded; l += LANES) {
        const __m512 x = load(is_bf16, 0xffff, weights + l * size);
        const __m512 own = _mm512_maskz_loadu_ps(that_stay(x), gradient + l);
        _mm512_storeu_ps(gradient + l, _mm512_mul_ps(_mm512_abs_ps(x), _mm512_sub_ps(own, mean)));
    }
}

INLINE void scaled(const int is_bf16, const float *from, int64_t count, int64_t width, __m512 factor, char *to,
                   int64_t row) {
    for (int64_t i = 0; i < count; i++)
        for (int64_t e = 0; e < width; e += LANES)
            store(is_bf16, to + i * row + e * size_of(is_bf16), mask_of(width - e),
                  _mm512_mul_ps(_mm512_loadu_ps(from + i * up(width, LANES) + e), factor));
}

INLINE void backward_of(const int is_bf16, const struct attention *a, const struct head *h) {
    const int64_t size = size_of(is_bf16), padded = up(h->length, LANES), columns = up(h->width, LANES);
    const int64_t of_width = units_of(is_bf16, h->width), of_queries = units_of(is_bf16, h->queries);
    const int64_t of_keys = units_of(is_bf16, h->length);
    float *values = a->room, *keys = values + of_width * padded, *queries = keys + of_keys * columns;
    float *gradients = queries + of_queries * columns, *scores = gradients + of_queries * columns;
    /* Of scores and of dropped weights, in units across queries; of scores of a tile, in units along keys. */
    float *all_scores = scores + TILE * padded, *all_weights = all_scores + of_queries * padded;
    float *own_scores = all_weights + of_queries * padded, *found = own_scores + TILE * padded;
    const __m512 kept = _mm512_set1_ps(a->kept), scale = _mm512_set1_ps(a->kept / sqrtf((float)h->width));
    lay_columns(is_bf16, h->value, a->row, h->length, h->width, values);
    lay_rows(is_bf16, h->key, a->row, h->length, h->width, keys);
    lay_rows(is_bf16, h->query, a->query_row, h->queries, h->width, queries);
    lay_rows(is_bf16, h->gradient, a->mixed_row, h->queries, h->width, gradients);
    for (int64_t q = 0; q < h->queries; q += TILE) {
        const int64_t count = h->queries - q < TILE ? h->queries - q : TILE;
        const char *weights = h->weights + q * padded * size;
        product_of(is_bf16, count, h->gradient + q * a->mixed_row, a->mixed_row, 4, of_width, values, padded, scores);
        for (int64_t i = 0; i < count; i++) to_scores(is_bf16, scores + i * padded, weights + i * padded * size, padded);
        for (int64_t i = 0; i < count; i += is_bf16 ? 2 : 1) {
            const int64_t unit = units_of(is_bf16, q + i);
            for (int64_t l = 0; l < padded; l += LANES) {
                const __m512 score = _mm512_loadu_ps(scores + i * padded + l);
                const char *at = weights + i * padded * size + l * size;
                const __m512 weight = load(is_bf16, 0xffff, at);
                const __m512 stays = _mm512_maskz_mov_ps(that_stay(weight), weight);
                char *own = (char *)own_scores + i * padded * size + l * size;
                float *all_s = all_scores + unit * padded + l, *all_w = all_weights + unit * padded + l;
                if (!is_bf16) {
                    _mm512_storeu_ps(own, score);
                    _mm512_storeu_ps(all_s, score);
                    _mm512_storeu_ps(all_w, stays);
                    continue;
                }
                const __m256i first = narrow(score);
                __m256i second = _mm256_setzero_si256(), second_stays = second;
                _mm256_storeu_si256((__m256i *)own, first);
                if (i + 1 < count) {
                    second = narrow(_mm512_loadu_ps(scores + (i + 1) * padded + l));
                    _mm256_storeu_si256((__m256i *)(own + padded * size), second);
                    const __m512 other = load(is_bf16, 0xffff, at + padded * size);
                    second_stays = narrow(_mm512_maskz_mov_ps(that_stay(other), other));
                }
                _mm512_storeu_ps(all_s, paired(first, second));
                _mm512_storeu_ps(all_w, paired(narrow(stays), second_stays));
            }
        }
        product_of(is_bf16, count, (char *)own_scores, padded * size, 4, of_keys, keys, columns, found);
        scaled(is_bf16, found, count, h->width, scale, h->to_query + q * a->query_row, a->query_row);
    }
    for (int64_t l = 0; l < h->length; l += TILE) {
        const int64_t count = h->length - l < TILE ? h->length - l : TILE;
        product_of(is_bf16, count, (char *)(all_scores + l), 4, padded * 4, of_queries, queries, columns, found);
        scaled(is_bf16, found, count, h->width, scale, h->to_key + l * a->row, a->row);
        product_of(is_bf16, count, (char *)(all_weights + l), 4, padded * 4, of_queries, gradients, columns, found);
        scaled(is_bf16, found, count, h->width, kept, h->to_value + l * a->row, a->row);
    }
}

/* --- sequences ---------------------------------------------------------------------------------------------------- */

INLINE void all_of(const int is_bf16, const int is_backward, const struct attention *a) {
    int64_t token = 0, weights = 0, bits = 0;
    for (int64_t s = 0; s < a->end; s++) {
        const int64_t length = a->lengths[s];
        for (int64_t number = 0; s >= a->begin && number < a->heads; number++) {
            const struct head h = head_of(a, is_bf16, s, token, weights, bits, number);
            if (is_backward) backward_of(is_bf16, a, &h);
            else forward_of(is_bf16, a, &h);
        }
        token += length;
        weights += a->heads * weights_of(a, length);
        bits += a->heads * bits_of(a, length);
    }
}

/* Return the numbers of `room`, for sequences of up to `longest` tokens. */
int64_t nlu_attention_room(const struct attention *a, int64_t longest) {
    const int64_t padded = up(longest, LANES), columns = up(a->width, LANES), queries = queries_of(a, longest);
    return padded * a->width + longest * columns + 2 * queries * columns + 2 * queries * padded +
           TILE * (2 * padded + columns);
}

void nlu_attention_forward(const struct attention *a) {
    if (a->is_bf16) all_of(1, 0, a);
    else all_of(0, 0, a);
}

void nlu_attention_backward(const struct attention *a) {
    if (a->is_bf16) all_of(1, 1, a);
    else all_of(0, 1, a);
}
