/*
 * Opening a checkpoint directory: survey, config, weights, ledger; and the
 * weights as a source of float rows. Text that the user should see collects
 * in `notes`.
 */
#include "models/checkpoint_priv.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "converter/base/io.h"
#include "converter/base/mem.h"

#define MAX_JSON (16u << 20)
#define MAX_INDEX 100000000u
#define COMPARE_BLOCK (1u << 20)

static struct js_doc *read_json(const char *dir, const char *name, uint64_t max,
                                struct err *e)
{
    char *path = io_join(dir, name, e);
    struct js_doc *d = path ? js_read_file(path, max, e) : NULL;

    mem_free(path);
    return d;
}

/* ---- opening ---- */

struct opening {
    struct ckpt *c;
    unsigned flags;
    struct ckpt_files files;
    struct ckpt_quant quant;
    struct err closed;     /* why the weights could not be opened */
    struct js_doc *index;  /* then only */
    struct hp_options opt; /* what the names say before the config is read */
    const struct ckpt_sign *sign; /* a name that only quantization has */
    char sign_name[256];
};

static int open_config(struct opening *o, struct err *e)
{
    struct ckpt *c = o->c;

    c->config = read_json(c->dir, CKPT_CONFIG_NAME, MAX_JSON, e);
    if (!c->config)
        return -1;
    for (size_t i = 0; i < o->files.n; i++)
        if (!strcmp(o->files.names[i], "generation_config.json")) {
            c->generation =
                read_json(c->dir, "generation_config.json", MAX_JSON, e);
            if (!c->generation)
                return -1;
        }
    return ckpt_quant_words(c->dir, &o->files, js_root(c->config), &o->quant,
                            e);
}

static int judge_sparse(const struct ckpt *c, struct err *e)
{
    for (size_t i = 0; i < st_shard_count(c->st); i++)
        if (st_shard_sparse(c->st, (int)i))
            return err_set(e, ERR_INPUT,
                           "'%s' has holes (blocks that were never written), "
                           "as a download that broke off leaves: download it "
                           "again",
                           st_shard_path(c->st, (int)i));
    return 0;
}

/* Weights that cannot be opened: the config, and the names in the index, may
 * still tell of a reason that no download cures. */
static int without_weights(struct opening *o, struct err *e)
{
    struct ckpt *c = o->c;
    struct err bad = ERR_INIT;

    if (c->st)
        st_close(c->st);
    c->st = NULL;
    if (o->files.index)
        o->index = read_json(c->dir, CKPT_INDEX_NAME, MAX_INDEX, &bad);
    return bad.code == ERR_NOMEM ? err_copy(e, &bad) : 0;
}

static int open_weights(struct opening *o, struct err *e)
{
    struct ckpt *c = o->c;

    if (!o->files.single && !o->files.index)
        return 0;
    c->st = st_open(c->dir, &o->closed);
    if (c->st && !judge_sparse(c, &o->closed))
        return 0;
    if (o->closed.code == ERR_NOMEM)
        return err_copy(e, &o->closed);
    return without_weights(o, e);
}

static void see_name(struct opening *o, const char *name)
{
    size_t base;
    const struct ckpt_sign *s = ckpt_sign_of(name, &base);

    if (ckpt_is_head(name))
        o->opt.head = HP_HEAD_PRESENT;
    if (s && (!o->sign || s < o->sign)) {
        o->sign = s;
        snprintf(o->sign_name, sizeof o->sign_name, "%s", name);
    }
}

/* Is there a head, are there names of quantized weights? */
static void see_names(struct opening *o)
{
    const struct js_node *map, *n;

    o->opt.force_tie = (o->flags & CKPT_FORCE_TIE) != 0;
    o->opt.head = HP_HEAD_UNKNOWN;
    if (!o->c->st && !o->index)
        return;
    o->opt.head = HP_HEAD_ABSENT;
    if (o->c->st) {
        for (size_t i = 0; i < st_count(o->c->st); i++)
            see_name(o, st_at(o->c->st, i)->name);
        return;
    }
    map = js_get(js_root(o->index), "weight_map");
    for (n = js_first(map); n; n = js_next(n))
        if (js_key(n))
            see_name(o, js_key(n));
}

static int refuse_quant(const struct opening *o, const struct err *also,
                        struct err *e)
{
    return ckpt_refuse_quant(o->c->dir, &o->quant, o->sign,
                             o->sign ? o->sign_name : NULL, also, e);
}

static int parse_config(struct opening *o, struct err *e)
{
    struct ckpt *c = o->c;
    struct err why = ERR_INIT;
    bool words = o->quant.what[0] != 0;

    if (hparams_parse_with(c->config, &o->opt, &c->hp, &c->notes, &why)) {
        /* Both reasons in one line, quantization first. */
        if ((words || o->sign) && why.code == ERR_UNSUPPORTED)
            return refuse_quant(o, &why, e);
        err_copy(e, &why);
        return err_in(e, "'%s/" CKPT_CONFIG_NAME "'", c->dir);
    }
    /* Without tensors the config, or the names in the index, decide. */
    if (!c->st && (words || o->sign))
        return refuse_quant(o, NULL, e);
    if (c->st)
        return 0;
    if (o->flags & CKPT_CONFIG_ONLY) {
        if (o->closed.code)
            buf_printf(&c->notes, "planned from the config alone: %s\n",
                       o->closed.text);
        return 0;
    }
    return o->closed.code ? err_copy(e, &o->closed)
                          : ckpt_no_weights(c->dir, &o->files, e);
}

/* ---- notes ---- */

/* Byte ranges of two tensors of equal dtype and shape. */
static int same_bytes(const struct st *st, const struct st_tensor *a,
                      const struct st_tensor *b, bool *same, struct err *e)
{
    uint64_t left = a->end - a->begin, at = 0;
    unsigned char *buf = mem_alloc(2, COMPARE_BLOCK, e);
    int rc = buf ? 0 : -1;

    *same = true;
    while (!rc && left && *same) {
        size_t n = left < COMPARE_BLOCK ? (size_t)left : COMPARE_BLOCK;
        if (st_read_bytes(st, a, at, buf, n, e) ||
            st_read_bytes(st, b, at, buf + COMPARE_BLOCK, n, e))
            rc = -1;
        else
            *same = !memcmp(buf, buf + COMPARE_BLOCK, n);
        at += n;
        left -= n;
    }
    mem_free(buf);
    return rc;
}

static int note_spare_head(struct ckpt *c, struct err *e)
{
    const struct st_tensor *head = ledger_spare_head(c);
    const struct st_tensor *table = ckpt_tensor(c, "embed_tokens.weight");
    bool same;

    if (!head || !table)
        return 0;
    same = head->dtype == table->dtype && head->elems == table->elems;
    if (same && same_bytes(c->st, head, table, &same, e))
        return -1;
    buf_printf(&c->notes,
               same ? "'%.200s' repeats the embedding and is skipped: the "
                      "model is tied (%s)\n"
                    : "warning: '%.200s' differs from the embedding, but the "
                      "model is tied (%s): the embedding is used\n",
               head->name, c->hp.tied_by);
    return 0;
}

static void note_dtypes(struct ckpt *c)
{
    static const struct {
        const char *word;
        enum st_dtype dtype;
    } names[] = { { "bfloat16", ST_BF16 },
                  { "float16", ST_F16 },
                  { "float32", ST_F32 } };
    size_t count[ST_DTYPE_COUNT] = { 0 };
    const char *sep = "tensors by dtype: ";

    for (size_t i = 0; i < c->ledger.n; i++) {
        const struct need *n = &c->ledger.needs[i];

        count[n->tensor->dtype] += n->n_parts ? n->n_parts : 1;
    }
    for (size_t d = 0; d < ST_DTYPE_COUNT; d++)
        if (count[d]) {
            buf_printf(&c->notes, "%s%s %zu", sep,
                       st_dtype_name((enum st_dtype)d), count[d]);
            sep = ", ";
        }
    buf_addc(&c->notes, '\n');
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
        if (!strcmp(names[i].word, c->hp.dtype) && !count[names[i].dtype])
            buf_printf(&c->notes,
                       "config.json says %s, no needed tensor is; the "
                       "tensors' own dtypes count\n",
                       c->hp.dtype);
}

static int add_notes(struct opening *o, struct err *e)
{
    struct ckpt *c = o->c;
    const struct ledger *l = &c->ledger;

    if (!c->st)
        return buf_ok(&c->notes, e);
    for (size_t i = 0; i < st_note_count(c->st); i++)
        buf_printf(&c->notes, "%s\n", st_note(c->st, i));
    buf_printf(&c->notes, "%" PRIu64 " tensors used", l->used_tensors);
    for (size_t i = 0; i < l->n_ignored; i++)
        buf_printf(&c->notes, ", %" PRIu64 " skipped by rule '%s'",
                   l->ignored[i].tensors, l->ignored[i].rule);
    buf_puts(&c->notes, ", none left over\n");
    note_dtypes(c);
    if (o->quant.what[0])
        buf_printf(&c->notes,
                   "%s calls the model %s, but every needed tensor is plain: "
                   "taken as plain\n",
                   o->quant.where, o->quant.what);
    if (!(o->flags & CKPT_CONFIG_ONLY) && note_spare_head(c, e))
        return -1;
    return buf_ok(&c->notes, e);
}

static int open_steps(struct opening *o, const char *dir, struct err *e)
{
    struct ckpt *c = o->c;
    size_t n = strlen(dir);

    while (n > 1 && dir[n - 1] == '/')
        n--;
    c->dir = mem_strndup(dir, n, e);
    if (!c->dir || ckpt_survey(c->dir, &o->files, e) ||
        ckpt_judge_files(c->dir, &o->files, e) || open_config(o, e) ||
        open_weights(o, e))
        return -1;
    see_names(o);
    if (parse_config(o, e) || ledger_build(c, &o->quant, e))
        return -1;
    return add_notes(o, e);
}

int ckpt_open(struct ckpt *c, const char *dir, unsigned flags, struct err *e)
{
    struct opening o = { .c = c, .flags = flags };
    int rc;

    memset(c, 0, sizeof *c);
    rc = open_steps(&o, dir, e);
    ckpt_files_release(&o.files);
    js_free(o.index);
    if (rc)
        ckpt_close(c);
    return rc;
}

void ckpt_close(struct ckpt *c)
{
    ledger_release(&c->ledger);
    if (c->st)
        st_close(c->st);
    js_free(c->config);
    js_free(c->generation);
    buf_release(&c->notes);
    mem_free(c->dir);
    memset(c, 0, sizeof *c);
}

/* ---- reading ---- */

const struct need *ckpt_need(const struct ckpt *c, const char *name)
{
    if (c->hp.tied && !strcmp(name, "lm_head.weight"))
        name = "embed_tokens.weight";
    return ledger_find(&c->ledger, name);
}

const struct st_tensor *ckpt_tensor(const struct ckpt *c, const char *name)
{
    const struct need *n = ckpt_need(c, name);

    return n ? n->tensor : NULL;
}

static int source_rows(void *cookie, const char *name, uint64_t row, uint64_t n,
                       float *dst, struct err *e)
{
    const struct ckpt *c = cookie;
    const struct need *need = ckpt_need(c, name);
    uint64_t rows = 1, cols = 1, first, elems;

    if (!need || !need->tensor)
        return err_set(e, ERR_INPUT, "'%s' has no tensor '%s'", c->dir, name);
    for (int i = 0; i < need->rank; i++) {
        rows *= cols;
        cols = need->dims[i];
    }
    if (row > rows || n > rows - row)
        return err_set(e, ERR_INPUT,
                       "tensor '%s' has %" PRIu64 " rows, rows %" PRIu64
                       " to %" PRIu64 " are asked for",
                       need->tensor->name, rows, row, row + n);
    if (!mem_mul(row, cols, &first) || !mem_mul(n, cols, &elems) ||
        elems > SIZE_MAX)
        return err_set(e, ERR_INPUT, "tensor '%s' is too large",
                       need->tensor->name);
    return need_read_f32(c->st, need, first, (size_t)elems, dst, e);
}

struct tensor_source ckpt_source(const struct ckpt *c)
{
    /* The cookie is only ever read through. */
    struct tensor_source s = { source_rows, (void *)(uintptr_t)c };

    return s;
}
