/*
 * report.json, read back from a package.
 */
#include <math.h>
#include <string.h>

#include "converter/base/io.h"
#include "converter/base/mem.h"
#include "converter/report.h"

#define MAX_BYTES 100000000

struct report_file {
    struct js_doc *doc;
    struct report_said *rows;
    bool *found; /* of each row */
    size_t n;
};

/* null is none. */
static double number(const struct js_node *n, const char *key)
{
    double v;

    return js_double(js_get(n, key), &v) && isfinite(v) ? v : NAN;
}

/* null where nothing is lost. */
static double loss_ratio(const struct js_node *n, double sse)
{
    return sse == 0 ? (double)INFINITY : number(n, "snr_db");
}

static uint64_t count(const struct js_node *n, const char *key)
{
    uint64_t v;

    return js_uint(js_get(n, key), &v) ? v : UINT64_MAX;
}

static const char *word(const struct js_node *n, const char *key)
{
    const char *s;

    return js_string(js_get(n, key), &s) ? s : NULL;
}

/* More axes than there can be are no shape. */
static void read_shape(const struct js_node *n, uint64_t shape[MIL_MAX_RANK])
{
    const struct js_node *x = js_count(n) <= MIL_MAX_RANK ? js_first(n) : NULL;

    for (int i = 0; i < MIL_MAX_RANK; i++, x = x ? js_next(x) : NULL)
        if (!js_uint(x, &shape[i]))
            shape[i] = UINT64_MAX;
}

static void read_sums(const struct js_node *n, struct report_said_sums *s)
{
    s->weights = count(n, "weights");
    s->value_bytes = count(n, "value_bytes");
    s->table_bytes = count(n, "table_bytes");
    s->bits_per_weight = number(n, "bits_per_weight");
    s->bits_requested = number(n, "bits_per_weight_requested");
    s->sse = number(n, "sse");
    s->snr = loss_ratio(n, s->sse);
}

static void read_row(const struct js_node *n, struct report_said *r)
{
    const char *kind = word(n, "kind");
    bool linear = kind && !strcmp(kind, "linear");

    *r = (struct report_said){ .part = word(n, "part"),
                               .name = word(n, "name"),
                               .tensor = word(n, "tensor"),
                               .kind = kind,
                               .method = word(n, "method"),
                               .rule = word(n, "rule") };
    read_shape(js_get(n, "shape"), r->shape);
    r->bits = count(n, "bits");
    r->group = js_get(n, linear ? "block" : "group")
                   ? count(n, linear ? "block" : "group")
                   : 0;
    read_sums(n, &r->sums);
}

struct report_file *report_open(const char *dir, struct err *e)
{
    char *path = io_join(dir, REPORT_NAME, e);
    struct report_file *f;
    const struct js_node *rows;
    size_t i = 0;

    if (!path || !io_exists(path)) {
        mem_free(path);
        return NULL;
    }
    f = mem_zalloc(1, sizeof(*f), e);
    if (f)
        f->doc = js_read_file(path, MAX_BYTES, e);
    rows = f && f->doc ? js_get(js_root(f->doc), "weights") : NULL;
    if (f && f->doc && (!rows || js_kind(rows) != JS_ARRAY))
        err_set(e, ERR_INPUT, "'%s' has no list 'weights'", path);
    mem_free(path);
    if (e->code) {
        report_close(f);
        return NULL;
    }
    f->rows = mem_alloc(js_count(rows) + 1, sizeof(*f->rows), e);
    f->found = mem_zalloc(js_count(rows) + 1, sizeof(*f->found), e);
    if (!f->rows || !f->found) {
        report_close(f);
        return NULL;
    }
    for (const struct js_node *n = js_first(rows); n; n = js_next(n), i++)
        read_row(n, &f->rows[i]);
    f->n = i;
    return f;
}

void report_close(struct report_file *f)
{
    if (!f)
        return;
    js_free(f->doc);
    mem_free(f->rows);
    mem_free(f->found);
    mem_free(f);
}

bool report_find(struct report_file *f, const char *part, const char *name,
                 struct report_said *out)
{
    for (size_t i = 0; f && i < f->n; i++)
        if (f->rows[i].part && f->rows[i].name &&
            !strcmp(f->rows[i].part, part) && !strcmp(f->rows[i].name, name)) {
            f->found[i] = true;
            *out = f->rows[i];
            return true;
        }
    return false;
}

size_t report_rows(const struct report_file *f)
{
    return f ? f->n : 0;
}

bool report_row(const struct report_file *f, size_t i, struct report_said *out)
{
    *out = f->rows[i];
    return f->found[i];
}

/* ---- sums ---- */

bool report_total(const struct report_file *f, const char *part,
                  struct report_said_total *out)
{
    const struct js_node *root = js_root(f->doc), *n;
    const char *name;

    n = part ? js_first(js_get(root, "parts")) : js_get(root, "package");
    for (; part && n; n = js_next(n)) {
        name = word(n, "part");
        if (name && !strcmp(name, part))
            break;
    }
    if (!n)
        return false;
    out->kind = word(n, "kind");
    out->file_bytes = count(n, "weight_file_bytes");
    read_sums(js_get(n, "all"), &out->all);
    read_sums(js_get(n, "matrices"), &out->matrices);
    return true;
}

size_t report_parts(const struct report_file *f)
{
    return js_count(js_get(js_root(f->doc), "parts"));
}

bool report_budget(const struct report_file *f, double *requested,
                   double *achieved)
{
    const struct js_node *n = js_get(js_root(f->doc), "budget");

    *requested = number(n, "requested");
    *achieved = number(n, "achieved");
    return n != NULL;
}
