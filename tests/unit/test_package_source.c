/*
 * Weights decoded from a package: every width against a clustering of the
 * checkpoint's own bits, powers of two undone, ranges, and lists of sources
 * that do not fit.
 */
#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "converter/package_source.h"
#include "quant/quant.h"
#include "t_dir.h"
#include "t_gate.h"
#include "t_graph.h"

static struct err err;

struct opened {
    struct t_gate t;
    struct package *package;
    struct package_source *src;
};

static void open_both(struct opened *o, const char *dir)
{
    struct run_options ro = { .profile = RUN_F32 };

    o->package = package_open(dir, &ro, &err);
    cr_assert(o->package, "%s", err.text);
    o->src = package_source_open(o->package, &o->t.ckpt, &err);
}

static void close_both(struct opened *o)
{
    package_source_close(o->src);
    package_close(o->package);
}

/* ---- every width ---- */

/* The group's values as the clusterer reads them: the checkpoint's bits. */
static void expected(const struct t_gate *t, const struct source_piece *p,
                     uint64_t group, struct qz_scratch *s, float *want)
{
    const struct st_tensor *x = ckpt_tensor(&t->ckpt, p->tensor);
    uint64_t rows = p->rows / p->groups, n = rows * p->cols;
    uint64_t first = (p->row + group * rows) * p->cols;
    uint16_t *bits = mem_alloc((size_t)n, sizeof(*bits), &err);
    uint8_t *idx = mem_alloc((size_t)n, 1, &err);
    f16_t table[256];
    struct qz_result r;

    cr_assert_eq(x->dtype, ST_BF16);
    cr_assert_eq(st_read_bytes(t->ckpt.st, x, 2 * first, bits, (size_t)(2 * n),
                               &err),
                 0);
    cr_assert_eq(qz_cluster(s, bits, (size_t)n, QZ_BF16, p->scale_exp, p->bits,
                            table, idx, &r, &err),
                 0, "%s", err.text);
    for (uint64_t i = 0; i < n; i++)
        want[i] = f16_to_f32(table[idx[i]]);
    mem_free(bits);
    mem_free(idx);
}

static void check_lut(const struct opened *o, size_t i,
                      const struct source_piece *p, struct qz_scratch *s)
{
    uint64_t rows = p->rows / p->groups, n = rows * p->cols;
    float *want = mem_alloc((size_t)n, sizeof(*want), &err);
    float *have = mem_alloc((size_t)n, sizeof(*have), &err);
    struct tensor_source ts = package_source_tensors(o->src);

    for (uint64_t g = 0; g < p->groups; g++) {
        expected(&o->t, p, g, s, want);
        cr_assert_eq(package_source_values(o->src, i, g * n, n, have, &err), 0,
                     "%s", err.text);
        cr_assert_eq(memcmp(want, have, (size_t)n * sizeof(*want)), 0,
                     "'%s', group %d", p->name, (int)g);
        cr_assert_eq(ts.rows(ts.cookie, p->tensor, p->row + g * rows, rows,
                             have, &err),
                     0, "%s", err.text);
        for (uint64_t k = 0; k < n; k++)
            cr_assert_eq(ldexpf(have[k], p->scale_exp), want[k]);
    }
    mem_free(want);
    mem_free(have);
}

static void check_width(const char *lut, int bits)
{
    struct opened o;
    struct qz_scratch *s = qz_scratch_new(&err);
    int luts = 0, folded = 0;

    T_GATE_MAKE(&o.t, .arch = "qwen3", .like = "tiny", .lut = lut, .ctx = 32);
    open_both(&o, o.t.honest);
    cr_assert(s && o.src, "%s", err.text);
    cr_expect_eq(package_source_compressed(o.src), 1);
    cr_expect_eq(package_source_bits(o.src), bits);
    for (size_t i = 0; i < package_source_count(o.src); i++) {
        struct source_piece p;

        package_source_at(o.src, i, &p);
        if (p.bits == 16)
            continue;
        cr_assert_eq(p.bits, bits);
        check_lut(&o, i, &p, s);
        luts++;
        folded += p.scale_exp != 0;
    }
    /* Seven matrices a layer, sixteen parts of the head; the gates halved. */
    cr_expect_eq(luts, 3 * 7 + 16);
    cr_expect_eq(folded, 3);
    qz_scratch_free(s);
    close_both(&o);
    t_gate_drop(&o.t);
}

Test(package_source, one_bit)
{
    check_width("1", 1);
}

Test(package_source, two_bits)
{
    check_width("2,4", 2);
}

Test(package_source, three_bits)
{
    check_width("3,tensor", 3);
}

Test(package_source, four_bits)
{
    check_width("4,32", 4);
}

Test(package_source, six_bits)
{
    check_width("6,1", 6);
}

Test(package_source, eight_bits)
{
    check_width("8,16", 8);
}

/* ---- plain constants ---- */

Test(package_source, plain_constants_are_the_rounded_tensors)
{
    struct opened o;
    struct tensor_source want, have;
    uint64_t total = 0;

    T_GATE_MAKE(&o.t, .arch = "qwen3", .like = "odd", .ctx = 32, .chunks = 2);
    open_both(&o, o.t.honest);
    cr_assert(o.src, "%s", err.text);
    cr_expect_eq(package_source_compressed(o.src), 0);
    cr_expect_eq(package_source_bits(o.src), 16);
    want = ckpt_source(&o.t.ckpt);
    have = package_source_tensors(o.src);
    for (size_t i = 0; i < o.t.ckpt.ledger.n; i++) {
        const struct need *nd = &o.t.ckpt.ledger.needs[i];
        uint64_t rows = nd->rank < 2 ? 1 : nd->dims[0];
        size_t n = (size_t)nd->tensor->elems;
        float *x = mem_alloc(n, sizeof(*x), &err);
        float *y = mem_alloc(n, sizeof(*y), &err);

        cr_assert_eq(want.rows(want.cookie, nd->name, 0, rows, x, &err), 0);
        cr_assert_eq(have.rows(have.cookie, nd->name, 0, rows, y, &err), 0,
                     "%s", err.text);
        for (size_t k = 0; k < n; k++) /* halved before they are rounded */
            x[k] = strstr(nd->name, "gate_proj") ? x[k] / 2 : x[k];
        num_round_f16(x, x, n);
        for (size_t k = 0; k < n; k++)
            x[k] = strstr(nd->name, "gate_proj") ? x[k] * 2 : x[k];
        cr_expect_eq(memcmp(x, y, n * sizeof(*x)), 0, "%s", nd->name);
        total += n;
        mem_free(x);
        mem_free(y);
    }
    cr_expect_eq(total, hparams_count(&o.t.ckpt.hp));
    close_both(&o);
    t_gate_drop(&o.t);
}

/* Any range of elements is the same as all of them: indices are packed, and
 * pieces are decoded some thousand elements at a time. */
Test(package_source, ranges)
{
    static const uint64_t cuts[][2] = { { 0, 1 },       { 3, 5 },
                                        { 7, 1 },       { 8, 8 },
                                        { 1021, 2049 }, { 4087, 4098 },
                                        { 8191, 1 } };
    struct opened o;
    float all[64 * 128], part[64 * 128];
    struct source_piece p;
    size_t i = 0;

    T_GATE_MAKE(&o.t, .arch = "qwen3", .like = "tiny", .lut = "3", .ctx = 32);
    open_both(&o, o.t.honest);
    cr_assert(o.src, "%s", err.text);
    for (; package_source_at(o.src, i, &p), strcmp(p.name, "layers_1_self_attn_"
                                                           "k_proj_weight");)
        cr_assert(++i < package_source_count(o.src));
    cr_assert_eq(p.rows * p.cols, sizeof(all) / sizeof(all[0]));
    cr_assert_eq(package_source_values(o.src, i, 0, 64 * 128, all, &err), 0);
    for (size_t k = 0; k < sizeof(cuts) / sizeof(cuts[0]); k++) {
        cr_assert_eq(package_source_values(o.src, i, cuts[k][0], cuts[k][1],
                                           part, &err),
                     0);
        cr_expect_eq(memcmp(part, all + cuts[k][0],
                            (size_t)cuts[k][1] * sizeof(*part)),
                     0, "from %d", (int)cuts[k][0]);
    }
    close_both(&o);
    t_gate_drop(&o.t);
}

Test(package_source, rows_that_are_not_there)
{
    struct opened o;
    struct tensor_source ts;
    float x[512];

    T_GATE_MAKE(&o.t, .arch = "qwen3", .like = "tiny", .ctx = 32);
    open_both(&o, o.t.honest);
    ts = package_source_tensors(o.src);
    cr_expect_eq(ts.rows(ts.cookie, "lm_head.weight", 511, 2, x, &err), -1);
    cr_expect_str_eq(err.text,
                     "the package holds no row 512 of tensor 'lm_head.weight'");
    err_reset(&err);
    cr_expect_eq(ts.rows(ts.cookie, "nothing", 0, 1, x, &err), -1);
    cr_expect(strstr(err.text, "tensor 'nothing'"), "%s", err.text);
    /* Across a border of the head's parts. */
    err_reset(&err);
    cr_expect_eq(ts.rows(ts.cookie, "lm_head.weight", 31, 2, x, &err), 0, "%s",
                 err.text);
    close_both(&o);
    t_gate_drop(&o.t);
}

/* ---- lists that do not fit ---- */

struct change {
    const char *was, *now; /* was NULL: the whole list */
};

static void replace(struct mil_program *p, const void *arg)
{
    const struct change *c = arg;
    const char *text = mil_program_metadata(p, "com.anemll.sources");
    const char *at = c->was ? strstr(text, c->was) : text;
    char *changed;

    cr_assert(at, "no '%s' in the list", c->was);
    changed = arena_printf(&p->arena, &err, "%.*s%s%s", (int)(at - text), text,
                           c->now, c->was ? at + strlen(c->was) : "");
    cr_assert_eq(mil_program_set_metadata(p, "com.anemll.sources", changed,
                                          &err),
                 0);
}

/* `part` is in the error's text; the file is named. */
static void refused(struct opened *o, const char *was, const char *now,
                    enum err_code code, const char *part)
{
    const struct change c = { was, now };

    t_gate_copy(&o->t);
    t_gate_edit(&o->t, CV_CHUNK, 1, replace, &c);
    err_reset(&err);
    open_both(o, o->t.copy);
    cr_expect_null(o->src, "'%s' was taken", now);
    cr_expect_eq(err.code, code, "%s", err.text);
    cr_expect(strstr(err.text, part), "%s, not %s", err.text, part);
    close_both(o);
}

Test(package_source, lists_that_do_not_fit)
{
    static const char in[] = "[\"layers.0.input_layernorm.weight\", 0, 128, "
                             "128, 0]";
    struct opened o;

    T_GATE_MAKE(&o.t, .arch = "qwen3", .like = "tiny", .ctx = 32);
    refused(&o, NULL, "{", ERR_INPUT, "metadata 'com.anemll.sources'");
    refused(&o, in, "[\"layers.0.input_layernorm.weight\", 0, 128, 128]",
            ERR_INPUT,
            "the entry of 'layers_0_input_layernorm_weight' is not [tensor, "
            "row, rows, total rows, exponent]");
    refused(&o, in, "[7, 0, 128, 128, 0]", ERR_INPUT, "is not [tensor, row");
    refused(&o, in, "[\"x\", 1, 128, 128, 0]", ERR_INPUT, "is not [tensor");
    refused(&o, in, "[\"x\", 0, 0, 128, 0]", ERR_INPUT, "is not [tensor");
    refused(&o, in, "[\"x\", 0, 128, 128, 31]", ERR_INPUT, "is not [tensor");
    refused(&o, in, "[\"x\", 0, 128, 128, 0.5]", ERR_INPUT, "is not [tensor");
    refused(&o, "\"layers_0_input_layernorm_weight\"", "\"nothing\"", ERR_INPUT,
            "names 'nothing', which the program does not hold");
    refused(&o, "\"layers_0_input_layernorm_weight\"", "\"rope_cos_\"",
            ERR_INPUT, "names 'rope_cos_'");
    refused(&o, in, "[\"layers.0.input_layernorm.weight\", 0, 127, 128, 0]",
            ERR_INPUT, "does not hold 127 rows of fp16");
    refused(&o, in, "[\"layers.9.input_layernorm.weight\", 0, 128, 128, 0]",
            ERR_MISMATCH,
            "holds tensor 'layers.9.input_layernorm.weight', which the "
            "checkpoint '");
    /* The reader of a norm of 32 must not be handed 128. */
    refused(&o, in, "[\"layers.0.self_attn.q_norm.weight\", 0, 128, 128, 0]",
            ERR_MISMATCH,
            "of tensor 'layers.0.self_attn.q_norm.weight', which has 32 rows "
            "and 1 columns");
    refused(&o, in, "[\"layers.0.self_attn.q_proj.weight\", 0, 128, 128, 0]",
            ERR_MISMATCH, "which has 128 rows and 128 columns");
    t_gate_drop(&o.t);
}
