/*
 * Gated DeltaNet: the recurrent mixer of hybrid families, as a graph.
 *
 * One value head keeps S [dk, dv]. For each token, with unit q and k:
 *     S = e^g S;  S += k (beta (v - S^T k))^T;  o = S^T q / sqrt(dk)
 *
 * What the Neural Engine flushes is each fp16 product that is subnormal, not
 * only a subnormal result, so small factors are scaled on their way in:
 *   - the state holds sqrt(dk) S: v times sqrt(dk);
 *   - q is a unit vector times a power of two near sqrt(dk), without
 *     1 / sqrt(dk): its elements are about 1;
 *   - behind that product the power of two goes out again, exactly, and the
 *     read-out stays dk o: the norm that follows does not see a scale (its
 *     epsilon times dk^2).
 * One choice serves all layers. With dk 128 and random keys the read-out has
 * rows from 0.03 |v| (rms) to elements of 54 |v|, |v| the mean of the values:
 * far within fp16 for |v| up to 64. Squares of elements above 255 or below
 * 0.008 are not fp16 numbers: layer_norm, which is known to accumulate in
 * float32, is taken to square so as well. In the
 * runtime's ane profile such a layer keeps a cosine of 0.9998 at every
 * position for |v| from 0.01 to 64, and one without the power of two falls to
 * 0.997 at 0.01; tests/unit/test_models_gdn_forms.c has these and other forms.
 */
#ifndef MODELS_PARTS_GDN_H
#define MODELS_PARTS_GDN_H

#include "models/parts.h"

#define GDN_STATE "model_model_gdn_state_0"
#define CONV_STATE "model_model_conv_state_0"

/* The power of two in the queries: the largest that is at most sqrt(dk). */
double gdn_query_scale(int64_t key_dim);

/* The two states of a decoder function, and what they hold now. */
struct gdn {
    mil_ref state, memory; /* [n_linear * nv, dk, dv] */
    mil_ref conv, history; /* [n_linear, K - 1, channels] */
};
/* Tokens that the chunked form takes at once: the largest divisor of the batch
 * up to 64, which the inverse of its size and sums of its decays in fp16 bear.
 * 0: the batch has none worth the name (below 16, unless it is the batch). */
#define GDN_CHUNK_MAX 64
#define GDN_CHUNK_MIN 16
int64_t gdn_chunk(int64_t batch);
/* Shapes of both states for `n` linear layers. */
void gdn_state_dims(const struct hparams *hp, int64_t n, int64_t memory[3],
                    int64_t history[3]);
/* What the recurrence takes, for each head: q and unit k, v, beta, and the
 * logarithm g of the decay. */
struct gdn_in {
    mil_ref q, k;    /* [1, NV, T, dk] */
    mil_ref v;       /* [1, NV, T, dv] */
    mil_ref beta, g; /* [1, NV, T, 1] */
};
/* T tokens: one step for T = 1, else chunks of `chunk`, which divides T.
 * *memory [1, NV, dk, dv] is S in v's scale, before and after; returns S^T q
 * [1, NV, T, dv] for every token. */
mil_ref gdn_recurrence(struct mb *b, const struct gdn_in *in, int64_t T,
                       int64_t chunk, mil_ref *memory);
/* The mixer of `layer`, the j-th linear one: [1, T, H] to [1, T, H]. One
 * recurrence step for T = 1, the chunked form otherwise (T a multiple of
 * `chunk`). */
mil_ref gdn_mixer(struct mb *b, const struct graph *g, struct gdn *s,
                  int64_t layer, int64_t j, int64_t chunk, mil_ref x);

#endif
