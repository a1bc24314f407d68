/*
 * Gated DeltaNet: the recurrent mixer of hybrid families, as a graph.
 *
 * One value head keeps S [dk, dv]. For each token, with unit q and k:
 *     S = e^g S;  S += k (beta (v - S^T k))^T;  o = S^T q / sqrt(dk)
 * The state holds sqrt(dk) S, so v is scaled by sqrt(dk) on its way in; the
 * read-out is left dk times too large, since the norm that follows does not
 * see a scale (its epsilon times dk^2). Both keep fp16 products out of the
 * subnormal range.
 */
#ifndef MODELS_PARTS_GDN_H
#define MODELS_PARTS_GDN_H

#include "models/parts.h"

#define GDN_STATE "model_model_gdn_state_0"
#define CONV_STATE "model_model_conv_state_0"

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
/* The mixer of `layer`, the j-th linear one: [1, T, H] to [1, T, H]. One
 * recurrence step for T = 1, the chunked form otherwise (T a multiple of
 * `chunk`). */
mil_ref gdn_mixer(struct mb *b, const struct graph *g, struct gdn *s,
                  int64_t layer, int64_t j, int64_t chunk, mil_ref x);

#endif
