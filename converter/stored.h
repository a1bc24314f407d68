/*
 * How the weights of a written program are stored, constant by constant, and
 * what they lost against the checkpoint.
 */
#ifndef CONVERTER_STORED_H
#define CONVERTER_STORED_H

#include "converter/base/log.h"
#include "converter/base/par.h"
#include "converter/package_source.h"

enum stored_form { STORED_PLAIN, STORED_TABLES, STORED_INTEGERS };
/* "fp16", "palettized", "linear", as report.json has them. */
const char *stored_form_name(enum stored_form form);
struct stored {
    const char *name;   /* of the constant */
    const char *tensor; /* canonical name in the checkpoint; NULL: unknown */
    bool whole;         /* it holds all rows of that tensor */
    struct mil_type type;
    enum stored_form form;
    int bits;
    /* Tables: output channels that share one. Integers: columns that share a
     * scale. 0: all. */
    uint64_t group;
    uint64_t weights;
    uint64_t value_bytes; /* indices, integers, or plain values */
    uint64_t table_bytes; /* tables, or scales; 0 if plain */
};
struct stored_list {
    struct stored *items;
    size_t n, cap;
    struct js_doc *sources; /* owns the tensors' names */
    size_t unread;          /* compressed constants of other forms */
};
/* Constants that come from a tensor by the file's own list of sources, and
 * all others that are large enough to be weights, in today's and older forms;
 * those of a second function where the first lacks them. The names live as long
 * as the program. */
int stored_read(const struct mil_program *p, struct stored_list *out,
                struct err *e) ATTR_MUST_USE;
void stored_release(struct stored_list *l);
/* 8 (value_bytes + table_bytes) / weights */
double stored_bits(const struct stored *s);

/* Sums over a constant: squared differences between what it holds and what it
 * should hold, which is the tensor's value with what is folded in; squares of
 * the latter. Same results for any number of threads. */
struct stored_loss {
    double sse, energy;
};
int stored_measure(const struct package_source *src, size_t piece,
                   const struct ckpt *c, struct par *par,
                   struct stored_loss *out, struct err *e) ATTR_MUST_USE;
/* 10 log10(energy / sse), to a hundredth; INFINITY where nothing is lost. */
double stored_snr(const struct stored_loss *l);

#endif
