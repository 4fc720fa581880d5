/* AdamW, the moving average and the bf16 copies of weights in one pass over memory; called by nlu/optim/compiled.py.

All arithmetic is fp32, each number by itself and each by the same operations in the same order, so results do not
depend on how many numbers a call gets, nor on who computes them. Fused products are written so (-ffp-contract=off).
They are those of torch's own kernel on processors with AVX-512. */

#include "vectors.h"

struct settings {            /* of numbers that were updated equally often, in one group of the optimizer */
    float decay;             /* 1 - lr * weight_decay */
    float first, second;     /* beta2 is `second` */
    float rest_of_second;    /* 1 - beta2; `first` is 1 - beta1 */
    float step;              /* -lr / (1 - beta1^t) */
    float deviation;         /* sqrt(1 - beta2^t) */
    float eps;
};

struct stretch {
    int64_t start, end;
    char *copy;              /* bf16, of the number at `start`; null: none */
    int32_t settings;        /* their number; -1: the weights are not updated */
    int32_t rests;           /* whether gradient and moments are 0, and are neither read nor written */
};

struct lines {
    float *weights;
    const float *gradients;
    float *first, *second;   /* the moments */
    float *average;          /* null: none */
    float divisor;           /* of the gradients */
    float amount;            /* by which the average moves towards the weights */
};

/* from + amount * (to - from), from the nearer end */
INLINE __m512 between(__m512 from, __m512 to, __m512 amount, int is_near) {
    const __m512 way = _mm512_sub_ps(to, from);
    return is_near ? _mm512_fmadd_ps(amount, way, from)
                   : _mm512_fmadd_ps(_mm512_sub_ps(amount, _mm512_set1_ps(1.0f)), way, to);
}

struct vectors {             /* of settings, in registers */
    __m512 decay, first, second, rest, step, deviation, eps, divisor, amount;
    int first_is_near, is_near;
};

/* Masked stores take long, so whole vectors are stored without a mask. */
INLINE __m512 read(const float *from, const int is_whole, __mmask16 mask) {
    return is_whole ? _mm512_loadu_ps(from) : _mm512_maskz_loadu_ps(mask, from);
}

INLINE void write(float *to, const int is_whole, __mmask16 mask, __m512 x) {
    if (is_whole) _mm512_storeu_ps(to, x);
    else _mm512_mask_storeu_ps(to, mask, x);
}

INLINE void update_one(const struct lines *l, const struct vectors *o, int64_t i, uint16_t *copy, const int is_whole,
                       __mmask16 mask, const int updates, const int rests, const int divides, const int follows) {
    __m512 w = read(l->weights + i, is_whole, mask);
    if (updates) {
        w = _mm512_mul_ps(w, o->decay);
        if (!rests) {
            __m512 g = read(l->gradients + i, is_whole, mask);
            if (divides) g = _mm512_div_ps(g, o->divisor);
            const __m512 m = between(read(l->first + i, is_whole, mask), g, o->first, o->first_is_near);
            __m512 v = _mm512_mul_ps(read(l->second + i, is_whole, mask), o->second);
            v = _mm512_fmadd_ps(_mm512_mul_ps(o->rest, g), g, v);
            write(l->first + i, is_whole, mask, m);
            write(l->second + i, is_whole, mask, v);
            const __m512 scale = _mm512_add_ps(_mm512_div_ps(_mm512_sqrt_ps(v), o->deviation), o->eps);
            w = _mm512_add_ps(w, _mm512_div_ps(_mm512_mul_ps(o->step, m), scale));
        }
        write(l->weights + i, is_whole, mask, w);
        if (copy && is_whole) _mm256_storeu_si256((__m256i *)copy, narrow(w));
        else if (copy) _mm256_mask_storeu_epi16(copy, mask, narrow(w));
    }
    if (follows) {
        const __m512 a = between(read(l->average + i, is_whole, mask), w, o->amount, o->is_near);
        write(l->average + i, is_whole, mask, a);
    }
}

INLINE void update(const struct lines *l, const struct stretch *s, const struct settings *o, const int updates,
                   const int rests, const int divides, const int follows, const int copies) {
    const struct vectors v = {
        _mm512_set1_ps(o->decay), _mm512_set1_ps(o->first), _mm512_set1_ps(o->second),
        _mm512_set1_ps(o->rest_of_second), _mm512_set1_ps(o->step), _mm512_set1_ps(o->deviation),
        _mm512_set1_ps(o->eps), _mm512_set1_ps(l->divisor), _mm512_set1_ps(l->amount), o->first < 0.5f,
        l->amount < 0.5f,
    };
    uint16_t *copy = copies ? (uint16_t *)s->copy : 0;
    int64_t i = s->start;
    for (; i + LANES <= s->end; i += LANES) {
        update_one(l, &v, i, copy, 1, 0xffff, updates, rests, divides, follows);
        if (copies) copy += LANES;
    }
    if (i < s->end) update_one(l, &v, i, copy, 0, mask_of(s->end - i), updates, rests, divides, follows);
}

INLINE void update_all(const struct lines *l, const struct stretch *s, int64_t stretches, const struct settings *all,
                       const int divides, const int follows) {
    static const struct settings none;
    for (int64_t n = 0; n < stretches; n++, s++) {
        const struct settings *o = s->settings < 0 ? &none : all + s->settings;
        if (s->settings < 0) {
            if (follows) update(l, s, o, 0, 0, 0, 1, 0);
        } else if (s->rests && s->copy) update(l, s, o, 1, 1, 0, follows, 1);
        else if (s->rests) update(l, s, o, 1, 1, 0, follows, 0);
        else if (s->copy) update(l, s, o, 1, 0, divides, follows, 1);
        else update(l, s, o, 1, 0, divides, follows, 0);
    }
}

/* Update all stretches. */
void nlu_adamw(const struct lines *l, const struct stretch *s, int64_t stretches, const struct settings *settings) {
    const int divides = l->divisor != 1.0f;
    if (l->average) divides ? update_all(l, s, stretches, settings, 1, 1) : update_all(l, s, stretches, settings, 0, 1);
    else divides ? update_all(l, s, stretches, settings, 1, 0) : update_all(l, s, stretches, settings, 0, 0);
}
