/*
 * The embeddings part alone beside the oracle's rows.
 *
 * Behind the first norm a factor on the embeddings shows in the logits only by
 * what it shifts between them and the branches: 0.15 %, the root of the width
 * unrounded, hides there. Row by row it cannot. The graph's stream may be the
 * model's times a power of two (models.h: stream_exp), so the nearest one is
 * taken out first.
 */
#ifndef CONVERTER_GATE_EMBED_H
#define CONVERTER_GATE_EMBED_H

#include "converter/gate.h"
#include "converter/package_run.h"

/* |2^-k package - oracle| / |oracle| over the rows of `n` tokens together; 0
 * where the oracle's are all zero. The package's position and states stay, the
 * oracle's context must have room for n tokens and stays too. */
int gate_embed_compare(struct package *p, struct oracle *o, const int32_t *ids,
                       size_t n, double *distance, struct err *e) ATTR_MUST_USE;

#endif
