/* What lies between the matrix products of a transformer layer, with both passes, for training; called by
training_kernels.py, which has the names.

Inputs and outputs of products are fp32 or bf16; all arithmetic is fp32. Rows are computed one after another, each in a
fixed order, and sums over rows add them in their order: no operation is fused unless it is written so
(-ffp-contract=off).

Comments name axes as Python does: R rows, D width. */

#include <math.h>
#include <stdint.h>
#include <string.h>

#include "vectors.h"

enum activation { GELU = 0, GELU_TANH = 1, RELU = 2 };

INLINE void add_to(float *sums, __mmask16 mask, __m512 x) {
    _mm512_mask_storeu_ps(sums, mask, _mm512_add_ps(_mm512_maskz_loadu_ps(mask, sums), x));
}

/* --- dropout, residual sum and norm ------------------------------------------------------------------------------- */

struct normed {
    int64_t rows, width;
    int32_t is_bf16;         /* of what is `char` below */
    uint32_t least;          /* a number stays if its random number is not below it */
    float kept;              /* factor of numbers that stay */
    const uint16_t *bits;    /* (R, D), read forward; null: no dropout */
    uint16_t *stays;         /* (R, up(D, LANES) / LANES), a bit for each number: written forward, read backward */
    const float *weight;     /* (D), of the norm */
    char *scaled;            /* (R, D), the sum without its mean, by its deviation: written forward, read backward */
    float *deviation;        /* (R), 1 / deviation */
    /* forward */
    double eps;
    const char *projected;   /* (R, D) */
    const float *residual;   /* (R, D) */
    const float *bias;       /* (D), of the norm */
    float *out;              /* (R, D) */
    char *low;               /* (R, D), `out` as the next product reads it; null: not written */
    /* backward */
    const float *gradient;   /* (R, D), of `out` */
    const char *added;       /* (R, D), to be added to it, in the type of products; null: nothing */
    float *to_residual;      /* (R, D) */
    char *to_projected;      /* (R, D) */
    float *to_weight, *to_bias, *to_projected_bias; /* (D): sums over rows, which begin as zeros */
};

/* Numbers from column i of row r on, after dropout. */
INLINE __m512 dropped(const struct normed *n, int64_t r, int64_t i, __m512 x) {
    if (!n->stays) return x;
    const __mmask16 stays = n->stays[r * (up(n->width, LANES) / LANES) + i / LANES];
    return _mm512_maskz_mul_ps(stays, x, _mm512_set1_ps(n->kept));
}

INLINE void decide(const struct normed *n, int64_t r, int64_t i, __mmask16 mask) {
    const __m512i bits = _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(mask, n->bits + r * n->width + i));
    n->stays[r * (up(n->width, LANES) / LANES) + i / LANES] =
        _mm512_cmpge_epu32_mask(bits, _mm512_set1_epi32((int)n->least));
}

/* out = norm(dropout(projected) + residual) */
INLINE void forward_of(const int is_bf16, const struct normed *n) {
    const int64_t width = n->width;
    for (int64_t r = 0; r < n->rows; r++) {
        const int64_t row = r * width;
        /* The sum is kept where the result will be. */
        float *out = n->out + row;
        __m512 sum = _mm512_setzero_ps(), squares = _mm512_setzero_ps();
        for (int64_t i = 0; i < width; i += LANES) {
            const __mmask16 mask = mask_of(width - i);
            const __m512 projected = load(is_bf16, mask, n->projected + (row + i) * size_of(is_bf16));
            if (n->bits) decide(n, r, i, mask);
            const __m512 x = _mm512_add_ps(dropped(n, r, i, projected),
                                           _mm512_maskz_loadu_ps(mask, n->residual + row + i));
            _mm512_mask_storeu_ps(out + i, mask, x);
            sum = _mm512_add_ps(sum, x);
        }
        const __m512 mean = _mm512_set1_ps(sum_of(sum) / (float)width);
        for (int64_t i = 0; i < width; i += LANES) {
            const __mmask16 mask = mask_of(width - i);
            const __m512 x = _mm512_maskz_sub_ps(mask, _mm512_maskz_loadu_ps(mask, out + i), mean);
            squares = _mm512_fmadd_ps(x, x, squares);
        }
        n->deviation[r] = (float)(1.0 / sqrt((double)(sum_of(squares) / (float)width) + n->eps));
        const __m512 factor = _mm512_set1_ps(n->deviation[r]);
        for (int64_t i = 0; i < width; i += LANES) {
            const __mmask16 mask = mask_of(width - i);
            const __m512 x = _mm512_mul_ps(_mm512_sub_ps(_mm512_maskz_loadu_ps(mask, out + i), mean), factor);
            store(is_bf16, n->scaled + (row + i) * size_of(is_bf16), mask, x);
            const __m512 found = _mm512_fmadd_ps(x, _mm512_maskz_loadu_ps(mask, n->weight + i),
                                                 _mm512_maskz_loadu_ps(mask, n->bias + i));
            _mm512_mask_storeu_ps(out + i, mask, found);
            if (n->low) store(is_bf16, n->low + (row + i) * size_of(is_bf16), mask, found);
        }
    }
}

INLINE void backward_of(const int is_bf16, const struct normed *n) {
    const int64_t width = n->width;
    for (int64_t r = 0; r < n->rows; r++) {
        const int64_t row = r * width;
        const char *scaled = n->scaled + row * size_of(is_bf16);
        /* The gradient of the scaled numbers is kept here until its means are known. */
        float *to_residual = n->to_residual + row;
        __m512 sum = _mm512_setzero_ps(), with_scaled = _mm512_setzero_ps();
        for (int64_t i = 0; i < width; i += LANES) {
            const __mmask16 mask = mask_of(width - i);
            __m512 gradient = _mm512_maskz_loadu_ps(mask, n->gradient + row + i);
            if (n->added)
                gradient = _mm512_add_ps(gradient, load(is_bf16, mask, n->added + (row + i) * size_of(is_bf16)));
            const __m512 x = load(is_bf16, mask, scaled + i * size_of(is_bf16));
            add_to(n->to_weight + i, mask, _mm512_mul_ps(gradient, x));
            add_to(n->to_bias + i, mask, gradient);
            const __m512 own = _mm512_mul_ps(gradient, _mm512_maskz_loadu_ps(mask, n->weight + i));
            sum = _mm512_add_ps(sum, own);
            with_scaled = _mm512_fmadd_ps(own, x, with_scaled);
            _mm512_mask_storeu_ps(to_residual + i, mask, own);
        }
        const __m512 mean = _mm512_set1_ps(sum_of(sum) / (float)width), factor = _mm512_set1_ps(n->deviation[r]);
        const __m512 slope = _mm512_set1_ps(sum_of(with_scaled) / (float)width);
        for (int64_t i = 0; i < width; i += LANES) {
            const __mmask16 mask = mask_of(width - i);
            const __m512 own = _mm512_sub_ps(_mm512_maskz_loadu_ps(mask, to_residual + i), mean);
            const __m512 x = load(is_bf16, mask, scaled + i * size_of(is_bf16));
            const __m512 found = _mm512_mul_ps(_mm512_fnmadd_ps(x, slope, own), factor);
            _mm512_mask_storeu_ps(to_residual + i, mask, found);
            const __m512 left = dropped(n, r, i, found);
            store(is_bf16, n->to_projected + (row + i) * size_of(is_bf16), mask, left);
            add_to(n->to_projected_bias + i, mask, left);
        }
    }
}

void nlu_normed_forward(const struct normed *n) {
    if (n->is_bf16) forward_of(1, n);
    else forward_of(0, n);
}

void nlu_normed_backward(const struct normed *n) {
    if (n->is_bf16) backward_of(1, n);
    else backward_of(0, n);
}

/* --- activation --------------------------------------------------------------------------------------------------- */

/* x F(x) and F(x) + x F'(x) for the normal distribution F; erf by 7.1.26 of Abramowitz and Stegun, with an absolute
error of 1.5e-7. */
INLINE __m512 gelu_of(__m512 x, __m512 *slope) {
    const __m512 one = _mm512_set1_ps(1.0f);
    const __m512 z = _mm512_abs_ps(_mm512_mul_ps(x, _mm512_set1_ps(0.70710678118654752f)));
    const __m512 t = _mm512_div_ps(one, _mm512_fmadd_ps(z, _mm512_set1_ps(0.3275911f), one));
    /* Half of the coefficients: the polynomial times the power is (1 - erf(z)) / 2. */
    __m512 p = _mm512_set1_ps(0.5307027145f);
    p = _mm512_fmadd_ps(p, t, _mm512_set1_ps(-0.7265760135f));
    p = _mm512_fmadd_ps(p, t, _mm512_set1_ps(0.7107068705f));
    p = _mm512_fmadd_ps(p, t, _mm512_set1_ps(-0.142248368f));
    p = _mm512_mul_ps(_mm512_fmadd_ps(p, t, _mm512_set1_ps(0.127414796f)), t);
    const __m512 power = exp_of(_mm512_fnmadd_ps(z, z, _mm512_setzero_ps()));
    const __m512 tail = _mm512_mul_ps(p, power);
    const __mmask16 is_negative = _mm512_cmp_ps_mask(x, _mm512_setzero_ps(), _CMP_LT_OQ);
    const __m512 below = _mm512_mask_blend_ps(is_negative, _mm512_sub_ps(one, tail), tail);
    *slope = _mm512_fmadd_ps(_mm512_mul_ps(x, _mm512_set1_ps(0.39894228040143268f)), power, below);
    return _mm512_mul_ps(x, below);
}

/* x s and its derivative, for s = (1 + tanh(u)) / 2 = 1 / (1 + exp(-2 u)) and u = sqrt(2 / pi) (x + 0.044715 x^3) */
INLINE __m512 gelu_tanh_of(__m512 x, __m512 *slope) {
    const float factor = 2 * 0.79788456080286536f;
    const __m512 one = _mm512_set1_ps(1.0f), square = _mm512_mul_ps(x, x);
    const __m512 per_x = _mm512_fmadd_ps(square, _mm512_set1_ps(-factor * 0.044715f), _mm512_set1_ps(-factor));
    const __m512 power = exp_of(_mm512_min_ps(_mm512_mul_ps(x, per_x), _mm512_set1_ps(88.0f)));
    const __m512 s = _mm512_div_ps(one, _mm512_add_ps(power, one)), out = _mm512_mul_ps(x, s);
    const __m512 of_u = _mm512_fmadd_ps(square, _mm512_set1_ps(factor * 3 * 0.044715f), _mm512_set1_ps(factor));
    *slope = _mm512_fmadd_ps(_mm512_mul_ps(out, _mm512_sub_ps(one, s)), of_u, s);
    return out;
}

/* The second operand of a maximum is the result for what is not a number. */
INLINE __m512 relu_of(__m512 x, __m512 *slope) {
    const __m512 zero = _mm512_setzero_ps();
    *slope = _mm512_maskz_mov_ps(_mm512_cmp_ps_mask(x, zero, _CMP_GT_OQ), _mm512_set1_ps(1.0f));
    return _mm512_max_ps(zero, x);
}

INLINE void active_of(const int is_bf16, const int activation, int64_t count, const char *from, char *out,
                      char *slopes) {
    for (int64_t i = 0; i < count; i += LANES) {
        const __mmask16 mask = mask_of(count - i);
        const int64_t at = i * size_of(is_bf16);
        const __m512 x = load(is_bf16, mask, from + at);
        __m512 slope, y;
        if (activation == GELU) y = gelu_of(x, &slope);
        else if (activation == GELU_TANH) y = gelu_tanh_of(x, &slope);
        else y = relu_of(x, &slope);
        store(is_bf16, out + at, mask, y);
        store(is_bf16, slopes + at, mask, slope);
    }
}

/* Write the activation of `count` numbers, and its derivatives, which may take the place of the numbers. */
void nlu_activation_forward(int32_t is_bf16, int32_t activation, int64_t count, const char *from, char *out,
                            char *slopes) {
    if (is_bf16) {
        if (activation == GELU) active_of(1, GELU, count, from, out, slopes);
        else if (activation == GELU_TANH) active_of(1, GELU_TANH, count, from, out, slopes);
        else active_of(1, RELU, count, from, out, slopes);
    } else {
        if (activation == GELU) active_of(0, GELU, count, from, out, slopes);
        else if (activation == GELU_TANH) active_of(0, GELU_TANH, count, from, out, slopes);
        else active_of(0, RELU, count, from, out, slopes);
    }
}

INLINE void times_of(const int is_bf16, int64_t rows, int64_t width, char *gradient, const char *slopes, float *sums) {
    for (int64_t r = 0; r < rows; r++)
        for (int64_t i = 0; i < width; i += LANES) {
            const __mmask16 mask = mask_of(width - i);
            const int64_t at = (r * width + i) * size_of(is_bf16);
            __m512 x = load(is_bf16, mask, gradient + at);
            if (slopes) {
                x = _mm512_mul_ps(x, load(is_bf16, mask, slopes + at));
                store(is_bf16, gradient + at, mask, x);
            }
            add_to(sums + i, mask, x);
        }
}

/* Multiply gradients (R, D) by derivatives, in place, unless these are null, and add all rows to sums (D). */
void nlu_activation_backward(int32_t is_bf16, int64_t rows, int64_t width, char *gradient, const char *slopes,
                             float *sums) {
    if (is_bf16) times_of(1, rows, width, gradient, slopes, sums);
    else times_of(0, rows, width, gradient, slopes, sums);
}
