/* Vectors of 16 numbers, for the sources of this folder. Compilers' own reductions promise no order of summation. */

#include <immintrin.h>
#include <stdint.h>

#define LANES 16
#define INLINE static inline __attribute__((always_inline))

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

/* Transpose 16 rows of 16 numbers, in registers. */
INLINE void transpose(__m512 x[LANES]) {
    __m512 y[LANES];
#pragma GCC unroll 8
    for (int i = 0; i < LANES; i += 2) {
        y[i] = _mm512_unpacklo_ps(x[i], x[i + 1]);
        y[i + 1] = _mm512_unpackhi_ps(x[i], x[i + 1]);
    }
#pragma GCC unroll 4
    for (int i = 0; i < LANES; i += 4)
#pragma GCC unroll 2
        for (int j = 0; j < 2; j++) {
            const __m512d low = _mm512_castps_pd(y[i + j]), high = _mm512_castps_pd(y[i + j + 2]);
            x[i + 2 * j] = _mm512_castpd_ps(_mm512_unpacklo_pd(low, high));
            x[i + 2 * j + 1] = _mm512_castpd_ps(_mm512_unpackhi_pd(low, high));
        }
#pragma GCC unroll 2
    for (int i = 0; i < LANES; i += 8)
#pragma GCC unroll 4
        for (int j = 0; j < 4; j++) {
            y[i + j] = _mm512_shuffle_f32x4(x[i + j], x[i + j + 4], 0x88);
            y[i + j + 4] = _mm512_shuffle_f32x4(x[i + j], x[i + j + 4], 0xdd);
        }
#pragma GCC unroll 8
    for (int j = 0; j < 8; j++) {
        x[j] = _mm512_shuffle_f32x4(y[j], y[j + 8], 0x88);
        x[j + 8] = _mm512_shuffle_f32x4(y[j], y[j + 8], 0xdd);
    }
}

#ifdef __AVX512BF16__
/* Numbers in memory: fp32, or bf16, which is rounded to nearest, ties to even. */

INLINE int64_t size_of(const int is_bf16) { return is_bf16 ? 2 : 4; }
INLINE __m512 wide(__m256i bf16) { return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(bf16), 16)); }
INLINE __m256i narrow(__m512 x) { return (__m256i)_mm512_cvtneps_pbh(x); }

INLINE __m512 load(const int is_bf16, __mmask16 mask, const void *from) {
    return is_bf16 ? wide(_mm256_maskz_loadu_epi16(mask, from)) : _mm512_maskz_loadu_ps(mask, from);
}

INLINE void store(const int is_bf16, void *to, __mmask16 mask, __m512 x) {
    if (is_bf16) _mm256_mask_storeu_epi16(to, mask, narrow(x));
    else _mm512_mask_storeu_ps(to, mask, x);
}
#endif
