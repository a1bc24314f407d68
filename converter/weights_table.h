/*
 * The weights of a package, ours or not, as a table: what the files hold, what
 * report.json says of it, and what it lost against a checkpoint.
 */
#ifndef CONVERTER_WEIGHTS_TABLE_H
#define CONVERTER_WEIGHTS_TABLE_H

#include "converter/base/json.h"
#include "converter/base/log.h"
#include "converter/base/par.h"
#include "models/checkpoint.h"

struct weights_query {
    const char *path;        /* package folder, or one model */
    bool package;            /* the former */
    const struct ckpt *ckpt; /* measure against it; NULL: do not */
    struct par *par;
    const struct log *log;
};
/* Into `w`, or as text into `out` if it is NULL. *sound: report.json, where
 * there is one, agrees with the files, and with the checkpoint if it is given.
 * A file that does not fit the checkpoint: ERR_MISMATCH. */
int weights_table(const struct weights_query *q, struct js_writer *w,
                  struct buf *out, bool *sound, struct err *e) ATTR_MUST_USE;

#endif
