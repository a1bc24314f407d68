/*
 * Tensor names and the ledger: every tensor of the file is used, skipped by a
 * named rule, or part of one error that lists all complaints.
 *
 * Prefixes drift between tools (nothing, "model.", "module.", wrappers
 * doubled or tripled), so none is fixed: a name is split in front of
 * "layers.N.", repeated segments of that stem are collapsed, and the stem
 * under which most needed tensors stand is the text model's. Skip rules match
 * dot-separated segments anywhere in a name. Experts that are stored one by one
 * make up the stacked tensor that is needed. Shapes are compared, never
 * mended.
 */
#include "models/checkpoint_priv.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "converter/base/io.h"
#include "converter/base/mem.h"

#define NAME_MAX_LEN 400 /* longer names match nothing */
#define SEG_MAX 48
#define SPARE_HEAD "lm_head.weight of a tied model"
#define LIST_LINES 40
#define LIST_BYTES (ERR_TEXT_MAX - 1024)

/* ---- declaring ---- */

int ledger_need(struct ledger *l, struct err *e, int rank, const uint64_t *dims,
                const char *fmt, ...)
{
    struct need *n;
    va_list ap;
    int len;

    if (l->n == l->cap &&
        mem_grow((void **)&l->needs, &l->cap, l->n, sizeof *l->needs, e))
        return -1;
    n = &l->needs[l->n];
    memset(n, 0, sizeof *n);
    va_start(ap, fmt);
    len = vsnprintf(n->name, sizeof n->name, fmt, ap);
    va_end(ap);
    BUG_UNLESS(len > 0 && (size_t)len < sizeof n->name && rank <= 4);
    n->rank = rank;
    for (int i = 0; i < rank; i++)
        n->dims[i] = dims[i];
    l->n++;
    return 0;
}

void layer_need(struct layer_needs *n, const char *name, int rank, int64_t d0,
                int64_t d1, int64_t d2)
{
    uint64_t dims[3] = { (uint64_t)d0, (uint64_t)d1, (uint64_t)d2 };

    if (!n->failed)
        n->failed = ledger_need(n->l, n->e, rank, dims, "layers.%d.%s",
                                n->layer, name) != 0;
}

void ledger_in_pieces(struct ledger *l, const char *first, const char *second)
{
    struct need *n = &l->needs[l->n - 1];

    BUG_UNLESS(l->n && n->rank == 3);
    n->pieces[0] = first;
    n->pieces[1] = second;
    n->n_pieces = second ? 2 : 1;
}

void ledger_release(struct ledger *l)
{
    for (size_t i = 0; i < l->n; i++)
        mem_free(l->needs[i].parts);
    mem_free(l->needs);
    mem_free(l->by_name);
    memset(l, 0, sizeof *l);
}

static int need_order(const void *pa, const void *pb)
{
    const struct need *const *a = pa, *const *b = pb;

    return strcmp((*a)->name, (*b)->name);
}

static int index_needs(struct ledger *l, struct err *e)
{
    l->by_name = mem_alloc(l->n, sizeof *l->by_name, e);
    if (!l->by_name)
        return -1;
    for (size_t i = 0; i < l->n; i++)
        l->by_name[i] = &l->needs[i];
    if (l->n)
        qsort(l->by_name, l->n, sizeof *l->by_name, need_order);
    return 0;
}

static struct need *find_need(const struct ledger *l, const char *name)
{
    size_t lo = 0, hi = l->n;

    while (l->by_name && lo < hi) {
        size_t mid = lo + (hi - lo) / 2;
        int c = strcmp(name, l->by_name[mid]->name);
        if (!c)
            return l->by_name[mid];
        if (c < 0)
            hi = mid;
        else
            lo = mid + 1;
    }
    return NULL;
}

static bool layer_number(const char *s, int64_t *out);

/* The first need whose name is not below `name`. */
static size_t lower_bound(const struct ledger *l, const char *name)
{
    size_t lo = 0, hi = l->by_name ? l->n : 0;

    while (lo < hi) {
        size_t mid = lo + (hi - lo) / 2;

        if (strcmp(l->by_name[mid]->name, name) < 0)
            lo = mid + 1;
        else
            hi = mid;
    }
    return lo;
}

/* "layers.3.mlp.experts.7.up_proj.weight" -> the need in pieces under
 * "layers.3.mlp.experts." that has such a piece, and its place there. */
static struct need *find_piece(const struct ledger *l, const char *name,
                               size_t *place)
{
    char t[sizeof((struct need *)0)->name + 16];
    size_t n = strlen(name), stem;
    char *piece, *number;
    int64_t at;

    if (n >= sizeof t || n < 8 || strcmp(name + n - 7, ".weight"))
        return NULL;
    memcpy(t, name, n - 7);
    t[n - 7] = 0;
    piece = strrchr(t, '.');
    if (!piece)
        return NULL;
    *piece++ = 0;
    number = strrchr(t, '.');
    if (!number || !layer_number(number + 1, &at))
        return NULL;
    number[1] = 0;
    stem = (size_t)(number + 1 - t);
    for (size_t i = lower_bound(l, t);
         i < l->n && !strncmp(l->by_name[i]->name, t, stem); i++) {
        struct need *need = l->by_name[i];

        for (size_t k = 0; k < need->n_pieces; k++)
            if (!strcmp(need->pieces[k], piece) &&
                (uint64_t)at < need->dims[0]) {
                *place = (size_t)at * need->n_pieces + k;
                return need;
            }
    }
    return NULL;
}

const struct need *ledger_find(const struct ledger *l, const char *name)
{
    return find_need(l, name);
}

/* ---- names ---- */

/* A name cut into stem and tail, repeats collapsed. `layer` is -1 where
 * "layers.N." does not occur; then the stem is empty and the tail all. */
struct cut {
    char stem[NAME_MAX_LEN + 2]; /* "" or with a final dot */
    char tail[NAME_MAX_LEN + 1]; /* "layers.3.mlp.up_proj.weight" */
    int64_t layer;
};

struct segs {
    char text[NAME_MAX_LEN + 1];
    const char *s[SEG_MAX];
    size_t n;
};

/* Wrappers that training tools insert anywhere in a name. */
static bool is_wrapper(const char *seg)
{
    return !strcmp(seg, "_orig_mod") || !strcmp(seg, "_fsdp_wrapped_module") ||
           !strcmp(seg, "_checkpoint_wrapped_module");
}

static bool split(const char *name, struct segs *g)
{
    size_t len = strlen(name);
    char *p = g->text;

    g->n = 0;
    if (!len || len > NAME_MAX_LEN)
        return false;
    memcpy(p, name, len + 1);
    while (p) {
        char *dot = strchr(p, '.');
        if (dot)
            *dot = 0;
        if (g->n == SEG_MAX)
            return false;
        if (!is_wrapper(p))
            g->s[g->n++] = p;
        p = dot ? dot + 1 : NULL;
    }
    return g->n > 0;
}

/* "0", "17", not "07", not beyond what a config may ask for. */
static bool layer_number(const char *s, int64_t *out)
{
    size_t n = strlen(s);
    int64_t v = 0;

    if (!n || n > 6 || (n > 1 && s[0] == '0'))
        return false;
    for (; *s; s++) {
        if (*s < '0' || *s > '9')
            return false;
        v = 10 * v + (*s - '0');
    }
    *out = v;
    return true;
}

/* Drops the second of two equal runs of segments in [0, end). Returns the new
 * end; what lay behind it moves along. */
static size_t collapse(struct segs *g, size_t end)
{
    for (size_t len = 1; 2 * len <= end; len++)
        for (size_t i = 0; i + 2 * len <= end;) {
            size_t k = 0;
            while (k < len && !strcmp(g->s[i + k], g->s[i + len + k]))
                k++;
            if (k < len) {
                i++;
                continue;
            }
            memmove(&g->s[i + len], &g->s[i + 2 * len],
                    (g->n - i - 2 * len) * sizeof g->s[0]);
            g->n -= len;
            end -= len;
        }
    return end;
}

static void join(char *out, const struct segs *g, size_t from, size_t to,
                 bool final_dot)
{
    char *p = out;

    for (size_t i = from; i < to; i++) {
        size_t n = strlen(g->s[i]);
        memcpy(p, g->s[i], n);
        p += n;
        if (i + 1 < to || final_dot)
            *p++ = '.';
    }
    *p = 0;
}

static bool cut_name(const char *name, struct cut *c)
{
    struct segs g;
    size_t at;

    c->layer = -1;
    if (!split(name, &g))
        return false;
    for (at = g.n; at > 0; at--)
        if (at + 1 < g.n && !strcmp(g.s[at - 1], "layers") &&
            layer_number(g.s[at], &c->layer))
            break;
    if (at > 0) {
        at = collapse(&g, at - 1);
        join(c->stem, &g, 0, at, at > 0);
        join(c->tail, &g, at, g.n, false);
    } else {
        collapse(&g, g.n);
        c->stem[0] = 0;
        join(c->tail, &g, 0, g.n, false);
    }
    return true;
}

/* `part` ("rotary_emb.inv_freq") occurs in `name` between dots or ends. */
static bool has_segments(const char *name, const char *part)
{
    size_t n = strlen(part);

    for (const char *p = name; (p = strstr(p, part)) != NULL; p++)
        if ((p == name || p[-1] == '.') && (!p[n] || p[n] == '.'))
            return true;
    return false;
}

static const char *ignore_rule(const struct model_arch *a, const char *name)
{
    for (const char *const *r = a->ignore; r && *r; r++)
        if (has_segments(name, *r))
            return *r;
    return NULL;
}

/* Why an unneeded tensor is skipped: `name` as the file has it, `tail` its
 * canonical name or NULL. */
static const char *skip_rule(const struct ckpt *c, const char *name,
                             const char *tail)
{
    const struct model_arch *a = c->hp.arch;
    const char *rule = ignore_rule(a, name);

    if (!rule && tail && a->spare)
        rule = a->spare(&c->hp, tail);
    if (!rule && tail && c->hp.tied && !strcmp(tail, "lm_head.weight"))
        rule = SPARE_HEAD;
    return rule;
}

bool ckpt_is_head(const char *name)
{
    static const char head[] = "lm_head.weight";
    size_t n = strlen(name), m = sizeof head - 1;

    return n >= m && !strcmp(name + n - m, head) &&
           (n == m || name[n - m - 1] == '.');
}

/* Every segment of `prefix` (up to `end`) occurs in `stem`, in this order:
 * heads stand under the model's own prefix or some of its parents. */
static bool is_outer_prefix(const char *prefix, const char *end,
                            const char *stem)
{
    while (prefix < end) {
        const char *dot = strchr(prefix, '.');
        size_t n = (size_t)(dot - prefix) + 1;
        while (*stem && strncmp(stem, prefix, n))
            stem = strchr(stem, '.') + 1;
        if (!*stem)
            return false;
        stem += n;
        prefix += n;
    }
    return true;
}

/* Canonical name under `stem`: a view into `c`, or NULL if the tensor stands
 * elsewhere. */
static const char *canonical(const struct cut *c, const char *stem)
{
    size_t n = strlen(stem);
    const char *head;

    if (c->layer >= 0)
        return strcmp(c->stem, stem) ? NULL : c->tail;
    head = strstr(c->tail, "lm_head.");
    if (head && (head == c->tail || head[-1] == '.') &&
        is_outer_prefix(c->tail, head, stem))
        return head;
    return strncmp(c->tail, stem, n) ? NULL : c->tail + n;
}

/* ---- reading ---- */

/* Both readers go piece by piece; all pieces have one size. */
int need_read_f32(const struct st *st, const struct need *n, uint64_t first,
                  size_t count, float *dst, struct err *e)
{
    if (!n->n_parts)
        return st_read_f32(st, n->tensor, first, count, dst, e);
    while (count) {
        uint64_t size = n->parts[0]->elems, at = first % size;
        uint64_t left = size - at;
        size_t m = count < left ? count : (size_t)left;

        BUG_UNLESS(first / size < n->n_parts);
        if (st_read_f32(st, n->parts[first / size], at, m, dst, e))
            return -1;
        first += m;
        dst += m;
        count -= m;
    }
    return 0;
}

int need_read_bytes(const struct st *st, const struct need *n, uint64_t offset,
                    void *dst, size_t count, struct err *e)
{
    unsigned char *out = dst;

    if (!n->n_parts)
        return st_read_bytes(st, n->tensor, offset, dst, count, e);
    while (count) {
        uint64_t size = n->parts[0]->end - n->parts[0]->begin;
        uint64_t at = offset % size, left = size - at;
        size_t m = count < left ? count : (size_t)left;

        BUG_UNLESS(offset / size < n->n_parts);
        if (st_read_bytes(st, n->parts[offset / size], at, out, m, e))
            return -1;
        offset += m;
        out += m;
        count -= m;
    }
    return 0;
}

/* ---- matching ---- */

enum complaint_kind { MISSING, UNMAPPED, UNKNOWN, SHAPE, REPEATED };

struct complaint {
    enum complaint_kind kind;
    int64_t layer, last; /* -1: outside layers; last: end of a run */
    const char *tail;    /* without "layers.N." */
    const char *detail;
};

struct match {
    struct ckpt *c;
    const struct ckpt_quant *quant;
    const char *stem;
    struct arena arena;
    bool *told; /* per need: missing, and complained of with its shard */
    struct complaint *list;
    size_t n, cap;
    size_t by_kind[REPEATED + 1];
    /* the best evidence of quantized weights */
    const struct ckpt_sign *sign;
    const char *sign_tensor;
};

static int complain(struct match *m, enum complaint_kind kind, int64_t layer,
                    const char *tail, const char *detail, struct err *e)
{
    struct complaint *p;

    if (mem_grow((void **)&m->list, &m->cap, m->n, sizeof *m->list, e))
        return -1;
    p = &m->list[m->n];
    p->kind = kind;
    p->layer = p->last = layer;
    p->tail = arena_strdup(&m->arena, tail, e);
    p->detail = arena_strdup(&m->arena, detail, e);
    if (!p->tail || !p->detail)
        return -1;
    m->n++;
    m->by_kind[kind]++;
    return 0;
}

/* "layers.3.mlp.up_proj.weight" -> 3, "mlp.up_proj.weight". */
static const char *below_layer(const char *name, int64_t *layer)
{
    char digits[8] = "";
    const char *dot;

    *layer = -1;
    dot = strncmp(name, "layers.", 7) ? NULL : strchr(name + 7, '.');
    if (!dot || (size_t)(dot - name - 7) >= sizeof digits)
        return name;
    memcpy(digits, name + 7, (size_t)(dot - name - 7));
    return layer_number(digits, layer) ? dot + 1 : name;
}

static void dims_text(char *out, size_t cap, int rank, const uint64_t *dims)
{
    size_t n = 0;

    snprintf(out, cap, "[]");
    for (int i = 0; i < rank && n < cap; i++)
        n += (size_t)snprintf(out + n, cap - n, "%s%" PRIu64 "%s",
                              i ? ", " : "[", dims[i], i + 1 < rank ? "" : "]");
}

static int complain_unknown(struct match *m, const struct st_tensor *t,
                            const struct cut *c, struct err *e)
{
    char shape[512], text[NAME_MAX_LEN + 32];
    const char *tail = c->tail, *name = canonical(c, m->stem);
    int64_t layer;

    st_shape_text(t, shape, sizeof shape);
    tail = below_layer(name ? name : tail, &layer);
    if (!name && layer >= 0) {
        snprintf(text, sizeof text, "%slayers.*.%s", c->stem, tail);
        tail = text;
    }
    return complain(m, UNKNOWN, layer, tail, shape, e);
}

static int check_shape(struct match *m, const struct need *n, struct err *e)
{
    const struct st_tensor *t = n->tensor;
    char has[512], want[128], text[680];
    bool same = t->rank == n->rank;
    const char *tail;
    int64_t layer;

    for (int i = 0; same && i < n->rank; i++)
        same = t->dims[i] == n->dims[i];
    if (same)
        return 0;
    st_shape_text(t, has, sizeof has);
    dims_text(want, sizeof want, n->rank, n->dims);
    snprintf(text, sizeof text, "%s, needed %s", has, want);
    tail = below_layer(n->name, &layer);
    return complain(m, SHAPE, layer, tail, text, e);
}

/* The shape of one piece. */
static void piece_dims(const struct need *n, uint64_t dims[2])
{
    dims[0] = n->dims[1] / n->n_pieces;
    dims[1] = n->dims[2];
}

static int take_piece(struct match *m, struct need *n, size_t place,
                      const char *name, const struct st_tensor *t,
                      struct err *e)
{
    size_t count = (size_t)n->dims[0] * n->n_pieces;
    char has[512], want[128], text[680];
    uint64_t dims[2];
    int64_t layer;

    if (!n->parts)
        n->parts = mem_zalloc(count, sizeof *n->parts, e);
    if (!n->parts)
        return -1;
    n->n_parts = count;
    if (n->tensor || n->parts[place])
        return complain(m, REPEATED, -1, name, t->name, e);
    n->parts[place] = t;
    piece_dims(n, dims);
    if (t->rank == 2 && t->dims[0] == dims[0] && t->dims[1] == dims[1])
        return 0;
    st_shape_text(t, has, sizeof has);
    dims_text(want, sizeof want, 2, dims);
    snprintf(text, sizeof text, "%s, needed %s", has, want);
    name = below_layer(name, &layer);
    return complain(m, SHAPE, layer, name, text, e);
}

static int ignore(struct ledger *l, const char *rule, const struct st_tensor *t,
                  struct err *e)
{
    size_t i, max = sizeof l->ignored / sizeof l->ignored[0];

    for (i = 0; i < l->n_ignored; i++)
        if (!strcmp(l->ignored[i].rule, rule))
            break;
    if (i == max)
        return err_set(e, ERR_UNSUPPORTED,
                       "tensors are skipped by more than %zu rules", max);
    if (i == l->n_ignored) {
        l->ignored[i].rule = rule;
        l->n_ignored++;
    }
    l->ignored[i].tensors++;
    l->ignored[i].bytes += t->end - t->begin;
    return 0;
}

/* A companion of a needed tensor that only quantized weights have. */
static bool note_sign(struct match *m, const struct st_tensor *t,
                      const char *name)
{
    char base[sizeof((struct need *)0)->name];
    const struct ckpt_sign *s;
    size_t n;

    s = ckpt_sign_of(name, &n);
    if (!s || n + sizeof ".weight" > sizeof base)
        return false;
    memcpy(base, name, n);
    memcpy(base + n, ".weight", sizeof ".weight");
    if (!find_need(&m->c->ledger, base) && !find_piece(&m->c->ledger, base, &n))
        return false;
    if (!m->sign || s < m->sign) {
        m->sign = s;
        m->sign_tensor = t->name;
    }
    return true;
}

static int take(struct match *m, const struct st_tensor *t, struct err *e)
{
    struct ledger *l = &m->c->ledger;
    const char *name = NULL, *rule;
    struct need *need = NULL, *whole;
    size_t place;
    struct cut c;

    if (cut_name(t->name, &c))
        name = canonical(&c, m->stem);
    else
        snprintf(c.tail, sizeof c.tail, "%.*s", NAME_MAX_LEN, t->name);
    if (name)
        need = find_need(l, name);
    if (need && (need->tensor || need->parts))
        return complain(m, REPEATED, -1, name, t->name, e);
    if (need) {
        need->tensor = t;
        return check_shape(m, need, e);
    }
    whole = name ? find_piece(l, name, &place) : NULL;
    if (whole)
        return take_piece(m, whole, place, name, t, e);
    rule = skip_rule(m->c, t->name, name);
    if (rule)
        return ignore(l, rule, t, e);
    if (name && note_sign(m, t, name))
        return 0;
    return complain_unknown(m, t, &c, e);
}

const struct st_tensor *ledger_spare_head(const struct ckpt *c)
{
    const struct ledger *l = &c->ledger;

    for (size_t i = 0; i < l->n_ignored; i++) {
        if (strcmp(l->ignored[i].rule, SPARE_HEAD))
            continue;
        for (size_t k = 0; k < st_count(c->st); k++)
            if (ckpt_is_head(st_at(c->st, k)->name) &&
                !ignore_rule(c->hp.arch, st_at(c->st, k)->name))
                return st_at(c->st, k);
    }
    return NULL;
}

/* The index promises a tensor that its shard lacks. */
static int take_unmapped(struct match *m, size_t i, struct err *e)
{
    int shard;
    const char *name = st_missing_name(m->c->st, i, &shard), *tail = NULL;
    const struct need *need = NULL;
    size_t place;
    char text[320];
    struct cut c;
    int64_t layer;

    if (cut_name(name, &c))
        tail = canonical(&c, m->stem);
    else
        snprintf(c.tail, sizeof c.tail, "%.*s", NAME_MAX_LEN, name);
    if (tail)
        need = find_need(&m->c->ledger, tail);
    if (tail && !need)
        need = find_piece(&m->c->ledger, tail, &place);
    if (need)
        m->told[need - m->c->ledger.needs] = true;
    if (!need && skip_rule(m->c, name, tail)) {
        buf_printf(&m->c->notes,
                   "the index names '%.200s', which its shard lacks; it is "
                   "not needed\n",
                   name);
        return 0;
    }
    snprintf(text, sizeof text, "(the index says it is in '%.200s')",
             shard < 0 ? "?" : io_basename(st_shard_path(m->c->st, shard)));
    tail = below_layer(tail ? tail : c.tail, &layer);
    return complain(m, UNMAPPED, layer, tail, text, e);
}

static int missing(struct match *m, const char *name, const char *shape,
                   struct err *e)
{
    int64_t layer;
    const char *tail = below_layer(name, &layer);

    return complain(m, MISSING, layer, tail, shape, e);
}

/* Pieces that lack; a need whose pieces are all there becomes one. */
static int missing_pieces(struct match *m, struct need *n, struct err *e)
{
    char want[128], name[sizeof n->name + 32];
    const char *tail = strrchr(n->name, '.');
    uint64_t dims[2];

    piece_dims(n, dims);
    dims_text(want, sizeof want, 2, dims);
    n->tensor = n->parts[0];
    for (size_t i = 0; i < n->n_parts; i++) {
        if (n->parts[i])
            continue;
        n->tensor = NULL;
        snprintf(name, sizeof name, "%.*s.%zu.%s.weight", (int)(tail - n->name),
                 n->name, i / n->n_pieces, n->pieces[i % n->n_pieces]);
        if (missing(m, name, want, e))
            return -1;
    }
    return 0;
}

/* A need that the file does not hold, unless the index told already. */
static int take_missing(struct match *m, size_t i, struct err *e)
{
    const struct need *n = &m->c->ledger.needs[i];
    char want[128];

    if (m->told[i])
        return 0;
    if (n->parts)
        return missing_pieces(m, &m->c->ledger.needs[i], e);
    dims_text(want, sizeof want, n->rank, n->dims);
    return missing(m, n->name, want, e);
}

/* ---- the stem ---- */

static int text_order(const void *pa, const void *pb)
{
    const char *const *a = pa, *const *b = pb;

    return strcmp(*a, *b);
}

/* The most frequent of n texts; the first one of equals. */
static const char *majority(const char **v, size_t n)
{
    const char *best = NULL;
    size_t most = 0;

    if (n)
        qsort(v, n, sizeof *v, text_order);
    for (size_t i = 0, end; i < n; i = end) {
        for (end = i + 1; end < n && !strcmp(v[i], v[end]); end++)
            continue;
        if (end - i > most) {
            most = end - i;
            best = v[i];
        }
    }
    return best;
}

/* Each tensor that some need's name fits votes for its stem. */
static int choose_stem(struct match *m, struct err *e)
{
    const struct st *st = m->c->st;
    const char **votes = mem_alloc(st_count(st), sizeof *votes, e);
    size_t n = 0;
    struct cut c;
    int rc = votes ? 0 : -1;

    for (size_t i = 0; i < st_count(st) && !rc; i++) {
        const char *name = st_at(st, i)->name;
        if (!cut_name(name, &c) || c.layer < 0 ||
            !find_need(&m->c->ledger, c.tail) ||
            ignore_rule(m->c->hp.arch, name))
            continue;
        votes[n] = arena_strdup(&m->arena, c.stem, e);
        rc = votes[n++] ? 0 : -1;
    }
    if (!rc) {
        m->stem = majority(votes, n);
        if (!m->stem)
            m->stem = "model.";
    }
    mem_free(votes);
    return rc;
}

/* ---- the error ---- */

static int by_subject(const void *pa, const void *pb)
{
    const struct complaint *a = pa, *b = pb;
    int c = (int)a->kind - (int)b->kind;

    if (!c)
        c = strcmp(a->tail, b->tail);
    if (!c)
        c = strcmp(a->detail, b->detail);
    return c ? c : (a->layer > b->layer) - (a->layer < b->layer);
}

static int by_place(const void *pa, const void *pb)
{
    const struct complaint *a = pa, *b = pb;
    int c = (a->layer > b->layer) - (a->layer < b->layer);

    if (!c)
        c = (a->last > b->last) - (a->last < b->last);
    return c ? c : by_subject(pa, pb);
}

/* The same complaint in consecutive layers becomes one. */
static void fold_runs(struct match *m)
{
    size_t n = 0;

    qsort(m->list, m->n, sizeof *m->list, by_subject);
    for (size_t i = 0; i < m->n; i++) {
        struct complaint *p = n ? &m->list[n - 1] : NULL, *q = &m->list[i];
        if (p && p->kind == q->kind && q->layer >= 0 &&
            q->layer == p->last + 1 && !strcmp(p->tail, q->tail) &&
            !strcmp(p->detail, q->detail))
            p->last = q->layer;
        else
            m->list[n++] = *q;
    }
    m->n = n;
    qsort(m->list, m->n, sizeof *m->list, by_place);
}

static void print_complaint(struct buf *b, const struct complaint *p)
{
    static const char *const words[] = { "missing", "missing", "unknown",
                                         "shape of", "twice" };
    char t[HP_CLEAN_MAX];

    if (p->layer < 0)
        buf_printf(b, "\n  top level: ");
    else if (p->layer == p->last)
        buf_printf(b, "\n  layer %" PRId64 ": ", p->layer);
    else
        buf_printf(b, "\n  layers %" PRId64 "-%" PRId64 ": ", p->layer,
                   p->last);
    buf_printf(b, "%s %s", words[p->kind], hp_clean(t, p->tail));
    buf_printf(b, "%s%.260s", p->kind == SHAPE ? " is " : " ", p->detail);
}

/* What the config announces and the tensors do not hold, or the reverse. */
static void print_hints(struct buf *b, const struct match *m)
{
    static const struct {
        const char *part, *flag;
    } blocks[] = {
        { "self_attn.q_proj.bias", "attention_bias" },
        { "self_attn.k_proj.bias", "attention_bias" },
        { "self_attn.v_proj.bias", "attention_bias" },
        { "self_attn.o_proj.bias", "attention_bias" },
        { "mlp.gate_proj.bias", "mlp_bias" },
        { "mlp.up_proj.bias", "mlp_bias" },
        { "mlp.down_proj.bias", "mlp_bias" },
        { "mlp.experts", "num_experts" },
        { "router.proj", "enable_moe_block" },
        { "embed_tokens_per_layer", "hidden_size_per_layer_input" },
        { "per_layer_input_gate", "hidden_size_per_layer_input" },
        { "per_layer_model_projection", "hidden_size_per_layer_input" },
        { "self_attn.q_norm.weight", NULL },
    };
    const char *last = NULL;

    for (size_t k = 0; k < sizeof blocks / sizeof blocks[0]; k++)
        for (size_t i = 0; i < m->n; i++) {
            const struct complaint *p = &m->list[i];
            bool unknown = p->kind == UNKNOWN;
            if ((!unknown && p->kind != MISSING) ||
                !has_segments(p->tail, blocks[k].part) ||
                (last && blocks[k].flag && !strcmp(last, blocks[k].flag)) ||
                (!blocks[k].flag && unknown == m->c->hp.qk_norm))
                continue;
            last = blocks[k].flag;
            if (last)
                buf_printf(b, "\n  (config.json %s '%s', the tensors %s)",
                           unknown ? "does not announce" : "announces", last,
                           unknown ? "hold it" : "do not hold it");
            else
                buf_printf(b, "\n  (per-head q/k norms: %s has %s)",
                           m->c->hp.arch->name, unknown ? "none" : "them");
            break;
        }
}

static void print_stems(struct buf *b, const struct match *m)
{
    struct cut c;

    for (size_t i = 0; i < st_count(m->c->st); i++) {
        const char *name = st_at(m->c->st, i)->name;
        char t[HP_CLEAN_MAX], u[HP_CLEAN_MAX];
        if (!cut_name(name, &c) || c.layer < 0 || !strcmp(c.stem, m->stem) ||
            !find_need(&m->c->ledger, c.tail) ||
            ignore_rule(m->c->hp.arch, name))
            continue;
        buf_printf(b,
                   "\n  (text tensors stand under more than one prefix: '%s' "
                   "and '%s')",
                   hp_clean(t, m->stem), hp_clean(u, c.stem));
        return;
    }
}

static void print_counts(struct buf *b, const struct match *m)
{
    static const char *const words[] = { "missing", "missing", "unknown",
                                         "of another shape", "repeated" };
    size_t n[REPEATED + 1];
    const char *sep = "";

    memcpy(n, m->by_kind, sizeof n);
    n[MISSING] += n[UNMAPPED];
    n[UNMAPPED] = 0;
    for (size_t k = 0; k <= REPEATED; k++) {
        if (!n[k])
            continue;
        buf_printf(b, "%s%zu %s", sep, n[k], words[k]);
        sep = ", ";
    }
}

static int refuse(struct match *m, struct err *e)
{
    struct buf b = BUF_INIT, hints = BUF_INIT;
    size_t i;

    print_hints(&hints, m);
    print_stems(&hints, m);
    fold_runs(m);
    print_counts(&b, m);
    for (i = 0; i < m->n; i++) {
        if (i == LIST_LINES || b.len + hints.len > LIST_BYTES)
            break;
        print_complaint(&b, &m->list[i]);
    }
    if (i < m->n)
        buf_printf(&b, "\n  and %zu more lines", m->n - i);
    buf_puts(&b, buf_text(&hints));
    if (!buf_ok(&b, e) && !buf_ok(&hints, e))
        err_set(e, ERR_INPUT,
                "'%s' does not hold the tensors of a %s model of this config: "
                "%s",
                m->c->dir, m->c->hp.arch->name, buf_text(&b));
    buf_release(&b);
    buf_release(&hints);
    return -1;
}

/* ---- the verdict ---- */

/* Nothing but the head is missing and the config unties. */
static bool only_head_missing(const struct match *m)
{
    return m->n == 1 && m->list[0].kind == MISSING &&
           !strcmp(m->list[0].tail, "lm_head.weight");
}

static bool is_packed(enum st_dtype d)
{
    return st_dtype_bits(d) <= 8 || d == ST_I32 || d == ST_U32 || d == ST_I16 ||
           d == ST_U16;
}

/* The tensors of a need: one, or its pieces; NULL where one lacks. */
static size_t need_count(const struct need *n)
{
    return n->n_parts ? n->n_parts : 1;
}

static const struct st_tensor *need_at(const struct need *n, size_t i)
{
    return n->n_parts ? n->parts[i] : n->tensor;
}

static int judge_dtype(const struct match *m, const struct st_tensor *t,
                       bool packed, struct err *e)
{
    bool told = m->quant->what[0] || m->sign;

    if (!t || st_dtype_is_plain(t->dtype))
        return 0;
    if (packed && told && is_packed(t->dtype))
        return ckpt_refuse_quant(m->c->dir, m->quant, m->sign, t->name, NULL,
                                 e);
    if (!packed)
        return err_set(e, ERR_UNSUPPORTED,
                       "tensor '%.300s' of '%s' is %s, which is "
                       "unsupported for now: BF16, F16 and F32 are read",
                       t->name, m->c->dir, st_dtype_name(t->dtype));
    return 0;
}

/* Needed tensors of another dtype than BF16, F16, F32: packed ones where
 * something tells of quantization, or all. */
static int judge_dtypes(const struct match *m, bool packed, struct err *e)
{
    const struct ledger *l = &m->c->ledger;

    for (size_t i = 0; i < l->n; i++)
        for (size_t k = 0; k < need_count(&l->needs[i]); k++)
            if (judge_dtype(m, need_at(&l->needs[i], k), packed, e))
                return -1;
    return 0;
}

static int judge_pieces(const struct match *m, struct err *e)
{
    const struct ledger *l = &m->c->ledger;

    for (size_t i = 0; i < l->n; i++) {
        const struct need *n = &l->needs[i];

        for (size_t k = 1; k < n->n_parts; k++)
            if (n->parts[k]->dtype != n->parts[0]->dtype)
                return err_set(e, ERR_UNSUPPORTED,
                               "tensor '%.200s' is %s and '%.200s' is %s; "
                               "experts of one layer must have one dtype",
                               n->parts[0]->name,
                               st_dtype_name(n->parts[0]->dtype),
                               n->parts[k]->name,
                               st_dtype_name(n->parts[k]->dtype));
    }
    return 0;
}

static int judge(struct match *m, struct err *e)
{
    if (m->sign)
        return ckpt_refuse_quant(m->c->dir, m->quant, m->sign, m->sign_tensor,
                                 NULL, e);
    if (judge_dtypes(m, true, e))
        return -1;
    if (only_head_missing(m))
        return err_set(e, ERR_INPUT,
                       "'%s' has no lm_head.weight, and "
                       "'tie_word_embeddings' is false (%s): if the embedding "
                       "is meant to serve as the head, say so with --tie",
                       m->c->dir, m->c->hp.tied_by);
    if (m->c->hp.arch->layout && m->c->hp.arch->layout(m->c, e))
        return err_in(e, "'%s'", m->c->dir);
    if (m->n)
        return refuse(m, e);
    return judge_dtypes(m, false, e) || judge_pieces(m, e) ? -1 : 0;
}

static void add_up(struct ledger *l)
{
    for (size_t i = 0; i < l->n; i++)
        for (size_t k = 0; k < need_count(&l->needs[i]); k++) {
            const struct st_tensor *t = need_at(&l->needs[i], k);

            l->used_tensors++;
            l->used_bytes += t->end - t->begin;
        }
}

static int match_all(struct match *m, struct err *e)
{
    struct ckpt *c = m->c;

    if (choose_stem(m, e))
        return -1;
    for (size_t i = 0; i < st_count(c->st); i++)
        if (take(m, st_at(c->st, i), e))
            return -1;
    for (size_t i = 0; i < st_missing_count(c->st); i++)
        if (take_unmapped(m, i, e))
            return -1;
    for (size_t i = 0; i < c->ledger.n; i++)
        if (!c->ledger.needs[i].tensor && take_missing(m, i, e))
            return -1;
    if (judge(m, e))
        return -1;
    add_up(&c->ledger);
    return 0;
}

int ledger_build(struct ckpt *c, const struct ckpt_quant *q, struct err *e)
{
    struct match m = { .c = c, .quant = q, .arena = ARENA_INIT };
    int rc;

    if (c->hp.arch->needs(&c->hp, &c->ledger, e) || index_needs(&c->ledger, e))
        return -1;
    if (!c->st)
        return 0;
    m.told = mem_zalloc(c->ledger.n, sizeof *m.told, e);
    rc = m.told ? match_all(&m, e) : -1;
    mem_free(m.told);
    mem_free(m.list);
    arena_release(&m.arena);
    return rc;
}
