/* Random numbers of many streams at once; called by random_streams.py, which has the names.

Each stream is NumPy's SFC64 (Chris Doty-Humphrey, PractRand), bit by bit: eight of them are in the lanes of a vector. */

#include <stdint.h>

#include "vectors.h"

#define STREAMS 8
#define SHORTS 32 /* numbers of 16 bits in a vector */
#define WARM_UP 12

struct streams { __m512i a, b, c, counter; };

INLINE __m512i next_of(struct streams *s, __mmask8 active) {
    const __m512i word = _mm512_add_epi64(_mm512_add_epi64(s->a, s->b), s->counter);
    s->a = _mm512_mask_xor_epi64(s->a, active, s->b, _mm512_srli_epi64(s->b, 11));
    s->b = _mm512_mask_add_epi64(s->b, active, s->c, _mm512_slli_epi64(s->c, 3));
    s->c = _mm512_mask_add_epi64(s->c, active, _mm512_rol_epi64(s->c, 24), word);
    s->counter = _mm512_mask_add_epi64(s->counter, active, s->counter, _mm512_set1_epi64(1));
    return word;
}

/* Transpose 8 rows of 8 words. */
INLINE void transpose_words(__m512i x[STREAMS]) {
    __m512i y[STREAMS];
#pragma GCC unroll 4
    for (int i = 0; i < STREAMS; i += 2) {
        y[i] = _mm512_unpacklo_epi64(x[i], x[i + 1]);
        y[i + 1] = _mm512_unpackhi_epi64(x[i], x[i + 1]);
    }
#pragma GCC unroll 2
    for (int i = 0; i < STREAMS; i += 4)
#pragma GCC unroll 2
        for (int j = 0; j < 2; j++) {
            x[i + j] = _mm512_shuffle_i64x2(y[i + j], y[i + j + 2], 0x88);
            x[i + j + 2] = _mm512_shuffle_i64x2(y[i + j], y[i + j + 2], 0xdd);
        }
#pragma GCC unroll 4
    for (int j = 0; j < 4; j++) {
        y[j] = _mm512_shuffle_i64x2(x[j], x[j + 4], 0x88);
        y[j + 4] = _mm512_shuffle_i64x2(x[j], x[j + 4], 0xdd);
    }
#pragma GCC unroll 8
    for (int j = 0; j < STREAMS; j++) x[j] = y[j];
}

/* States are rows of four words; those of a group are columns here. */
INLINE void read_states(const uint64_t *states, int64_t count, struct streams *s) {
    __m512i x[STREAMS];
    for (int i = 0; i < STREAMS; i++)
        x[i] = i < count ? _mm512_maskz_loadu_epi64(15, states + 4 * i) : _mm512_setzero_si512();
    transpose_words(x);
    *s = (struct streams){x[0], x[1], x[2], x[3]};
}

INLINE void write_states(uint64_t *states, int64_t count, const struct streams *s) {
    const __m512i zero = _mm512_setzero_si512();
    __m512i x[STREAMS] = {s->a, s->b, s->c, s->counter, zero, zero, zero, zero};
    transpose_words(x);
    for (int i = 0; i < count; i++) _mm512_mask_storeu_epi64(states + 4 * i, 15, x[i]);
}

/* Turn states whose first three words are seeds into those of streams from which nothing was drawn. */
void nlu_streams_begin(uint64_t *states, int64_t count) {
    for (int64_t first = 0; first < count; first += STREAMS, states += 4 * STREAMS) {
        struct streams s;
        read_states(states, count - first, &s);
        s.counter = _mm512_set1_epi64(1);
        for (int i = 0; i < WARM_UP; i++) next_of(&s, 0xff);
        write_states(states, count - first < STREAMS ? count - first : STREAMS, &s);
    }
}

/* Write `counts` numbers of 16 bits of each stream, one stream after another. A word has four, of which the last ones
are dropped. */
void nlu_streams_draw(uint64_t *states, int64_t count, const int64_t *counts, uint16_t *out) {
    for (int64_t first = 0; first < count; first += STREAMS, states += 4 * STREAMS, counts += STREAMS) {
        const int64_t here = count - first < STREAMS ? count - first : STREAMS;
        uint16_t *own[STREAMS];
        int64_t words[STREAMS] = {0}, longest = 0;
        for (int i = 0; i < here; i++) {
            own[i] = out;
            out += counts[i];
            words[i] = (counts[i] + 3) / 4;
            longest = most(longest, words[i]);
        }
        const __m512i all = _mm512_loadu_si512(words);
        struct streams s;
        read_states(states, here, &s);
        for (int64_t word = 0; word < longest; word += STREAMS) {
            __m512i x[STREAMS];
#pragma GCC unroll 8
            for (int i = 0; i < STREAMS; i++)
                x[i] = next_of(&s, _mm512_cmpgt_epi64_mask(all, _mm512_set1_epi64(word + i)));
            transpose_words(x);
#pragma GCC unroll 8
            for (int i = 0; i < STREAMS; i++) {
                const int64_t left = i < here ? counts[i] - 4 * word : 0;
                if (left >= SHORTS) _mm512_storeu_si512(own[i] + 4 * word, x[i]);
                else if (left > 0) _mm512_mask_storeu_epi16(own[i] + 4 * word, (1u << left) - 1, x[i]);
            }
        }
        write_states(states, here, &s);
    }
}
