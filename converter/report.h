/*
 * report.json of a package: a row for each constant that holds weights, with
 * what was asked for, what was written, and what it lost; sums of parts and
 * package. docs/WEIGHTS.md lists the keys.
 *
 * Rows come from the written files, opened again. A file that does not hold
 * what was promised is ERR_MISMATCH.
 */
#ifndef CONVERTER_REPORT_H
#define CONVERTER_REPORT_H

#include "converter/converter.h"
#include "converter/stored.h"

#define REPORT_NAME "report.json"

struct report;
/* Creates DIR/report.json, which grows with the parts. */
struct report *report_new(const struct cv_job *j, const char *dir,
                          struct err *e) ATTR_MUST_USE;
void report_free(struct report *r);
/* The next part, as it was written and as it was planned. */
int report_part(struct report *r, const struct cv_part *part,
                const struct pkg *written, const struct cv_program *planned,
                struct err *e) ATTR_MUST_USE;
/* All parts are there: the sums. */
int report_finish(struct report *r, struct err *e) ATTR_MUST_USE;

/* What rows add up to. */
struct report_sums {
    uint64_t weights, value_bytes, table_bytes;
    uint64_t file_bytes; /* of the weight files */
    double asked;        /* bits */
    struct stored_loss loss;
};
void report_join(struct report_sums *to, const struct report_sums *t);
/* Bits per weight, tables included; 0 without weights. */
double report_bits(const struct report_sums *t);
double report_bits_asked(const struct report_sums *t);
/* "embeddings", "ffn", "lmhead". */
const char *report_kind(enum cv_kind kind);
/* The name that the checkpoint gives a tensor; canonical for experts stored one
 * by one. */
const char *report_tensor(const struct ckpt *c, const char *canonical);
/* Why a constant that comes from a tensor is fp16 whatever the options say. */
const char *report_rule(const char *tensor);

/* What report.json of a package says of a constant, or of many. Counts:
 * UINT64_MAX where there is none; others: NAN. snr INFINITY: nothing lost. */
struct report_said_sums {
    uint64_t weights, value_bytes, table_bytes;
    double bits_per_weight, bits_requested, sse, snr;
};
struct report_said {
    const char *part, *name, *tensor, *kind, *method, *rule; /* may be NULL */
    uint64_t shape[MIL_MAX_RANK]; /* UINT64_MAX: no axis, or no number */
    uint64_t bits, group;
    struct report_said_sums sums;
};
/* Reads DIR/report.json; hostile input. NULL without an error: there is
 * none. */
struct report_file;
struct report_file *report_open(const char *dir, struct err *e) ATTR_MUST_USE;
void report_close(struct report_file *f);
/* False: it has no row of that constant. */
bool report_find(struct report_file *f, const char *part, const char *name,
                 struct report_said *out);
size_t report_rows(const struct report_file *f);
/* Row i; true: report_find gave it. */
bool report_row(const struct report_file *f, size_t i, struct report_said *out);

struct report_said_total {
    const char *kind; /* of a part; may be NULL */
    uint64_t file_bytes;
    struct report_said_sums all, matrices;
};
/* Of a part, or of the package (NULL); false: it has none. */
bool report_total(const struct report_file *f, const char *part,
                  struct report_said_total *out);
/* Parts that it has sums of. */
size_t report_parts(const struct report_file *f);
/* False: there was no budget. */
bool report_budget(const struct report_file *f, double *requested,
                   double *achieved);

#endif
