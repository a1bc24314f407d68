/*
 * One part in the forms that were asked for.
 */
#ifndef CONVERTER_EMIT_PRIV_H
#define CONVERTER_EMIT_PRIV_H

#include "converter/report.h"
#include "schema/package.h"

/* Writes <dir>/<part's name> as .mlpackage, as .mlmodelc or as both, reads
 * back what was written, holds it against the plan and one form against the
 * other, and fills the written figures of the part and its rows of the
 * report. */
int emit_part(const struct cv_job *j, struct cv_part *part, const char *dir,
              const struct cv_program *p, const struct pkg_options *po,
              struct report *report, struct err *e) ATTR_MUST_USE;

#endif
