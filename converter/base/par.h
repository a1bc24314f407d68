/*
 * Deterministic parallel-for over an index range. There is no global pool:
 * a `struct par *` is passed, and NULL means serial. Work is split by index
 * only, so a result that is a function of its index never depends on the
 * number of threads. One range at a time per pool: no nesting.
 */
#ifndef BASE_PAR_H
#define BASE_PAR_H

#include <stddef.h>
#include <stdint.h>

#include "converter/base/compiler.h"
#include "converter/base/err.h"

struct par;

/* Called for ranges [begin, end); `worker` is 0 .. par_width()-1 and no two
 * calls with the same worker run at once: index for scratch memory. */
typedef void (*par_fn)(void *arg, uint64_t begin, uint64_t end, int worker);

/* threads <= 0: cpu_count(). Fewer threads than asked is not an error; at
 * least the caller's own works. NULL only on ERR_NOMEM. */
struct par *par_new(int threads, struct err *e) ATTR_MUST_USE;
void par_free(struct par *p);
int par_width(const struct par *p); /* 1 for NULL */

/* Runs fn over [0, n) in pieces of at most `grain` indices (0: n / (4 *
 * width), at least 1). Returns when all is done. The calling thread works
 * too, as worker 0. */
void par_for(struct par *p, uint64_t n, uint64_t grain, par_fn fn, void *arg);

#endif
