/*
 * Between part.c, plan.c and convert.c.
 */
#ifndef CONVERTER_PROGRAM_PRIV_H
#define CONVERTER_PROGRAM_PRIV_H

#include "converter/converter.h"

/* User metadata: JSON object, constant -> [tensor, row, rows, total rows,
 * exponent of the power of two folded in]. */
#define CV_SOURCES_KEY "com.anemll.sources"
/* User metadata: how the indices and tables of a part were found. Absent:
 * cv_method_name(CV_KMEANS). */
#define CV_METHOD_KEY "com.anemll.lut_method"

/* Sets j->stream_exp where the user gave none: measures, notes what was found,
 * refuses what no scale brings into fp16. */
int cv_choose_scale(struct cv_job *j, struct err *e) ATTR_MUST_USE;
/* Fills the planned figures of a part; reads no matrix. Bytes of the weight
 * file: an upper bound, exact unless two constants turn out to hold equal
 * bytes. Of the compiled form likewise, exact unless tables or scales of a few
 * entries stand in its text. */
int cv_program_sizes(const struct cv_program *p, struct cv_part *part,
                     enum cv_emit emit, struct err *e) ATTR_MUST_USE;
/* The narrower of two, bits 0 being none. */
void cv_keep_narrowest(struct cv_lut *least, const struct cv_lut *l);
/* Compares bits and weights asked for with those in a written part that was
 * opened: ERR_MISMATCH. */
int cv_program_check(const struct mil_program *p, const struct cv_part *part,
                     const struct cv_program *planned,
                     struct err *e) ATTR_MUST_USE;
/* Palettization error of what was written. */
void cv_program_error(const struct cv_program *p, struct cv_part *part);

#endif
