/*
 * anemll-inspect: prints what a checkpoint, a package or one model file is.
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "converter/base/io.h"
#include "converter/base/mem.h"
#include "converter/base/num.h"
#include "converter/meta.h"
#include "converter/weights_table.h"
#include "mil/text.h"
#include "models/models.h"
#include "schema/package.h"
#include "tools/cli.h"

struct args {
    const char *path, *function, *hf;
    bool mil, weights;
};

/* ---- model files ---- */

static int print_mil(const struct cli *c, const struct args *a,
                     const struct pkg *p, struct err *e)
{
    struct text_options o = { .function = a->function,
                              .blob = pkg_blob,
                              .cookie = (void *)(uintptr_t)p };
    struct buf out = BUF_INIT;
    int rc;

    if (a->function && !mil_program_find(pkg_program(p), a->function))
        return err_set(e, ERR_USAGE, "'%s' has no function '%s'", pkg_path(p),
                       a->function);
    rc = text_print(pkg_program(p), &o, &out, e);
    if (rc)
        err_in(e, "'%s' as text", pkg_path(p));
    else if (out.len && out.data[out.len - 1] != '\n')
        buf_puts(&out, "\n");
    if (!rc)
        cli_print(c, &out);
    buf_release(&out);
    return rc;
}

static void values_json(const struct mil_function *f, const mil_ref *refs,
                        size_t n, const char *key, int kind,
                        struct js_writer *w)
{
    js_w_array(w, key, false);
    for (size_t i = 0; i < n; i++) {
        const struct mil_value *v = mil_value(f, refs[i]);
        char t[MIL_TYPE_TEXT_MAX];

        if (kind >= 0 && (int)v->kind != kind)
            continue;
        mil_type_text(&v->type, t);
        js_w_object(w, NULL);
        js_w_string(w, "name", v->name);
        js_w_string(w, "type", t);
        js_w_end(w);
    }
    js_w_end(w);
}

/* Kinds of operations by name, those that the table does not describe too. */
struct kinds {
    struct kind {
        const char *name;
        uint64_t count;
    } * items;
    size_t n, cap;
};

static int by_name(const void *a, const void *b)
{
    const struct kind *x = a, *y = b;

    return strcmp(x->name, y->name);
}

static int count_op(struct kinds *k, const char *name, struct err *e)
{
    void *items = k->items;

    for (size_t i = 0; i < k->n; i++)
        if (!strcmp(k->items[i].name, name)) {
            k->items[i].count++;
            return 0;
        }
    if (mem_grow(&items, &k->cap, k->n, sizeof(*k->items), e))
        return -1;
    k->items = items;
    k->items[k->n++] = (struct kind){ name, 1 };
    return 0;
}

/* To be freed by mem_free(k->items). */
static int count_ops(struct kinds *k, const struct mil_function *f,
                     struct err *e)
{
    memset(k, 0, sizeof(*k));
    for (size_t i = 0; i < f->n_ops; i++)
        if (count_op(k, mil_op_type(&f->ops[i]), e))
            return -1;
    if (k->n)
        qsort(k->items, k->n, sizeof(*k->items), by_name);
    return 0;
}

/* A constant large enough to be a weight: plain, palettized, or integers. */
struct weight_line {
    const char *name;
    const struct mil_type *type;
    int bits;
    bool linear;
    uint64_t tables, bytes; /* linear: scales */
};

static bool as_weight(const struct mil_function *f, const struct mil_op *op,
                      struct weight_line *l)
{
    const struct mil_const *c;
    const struct mil_value *v = op->n_outs ? mil_value(f, op->outs[0]) : NULL;

    if (!v)
        return false;
    memset(l, 0, sizeof(*l));
    l->name = v->name;
    l->type = &v->type;
    /* Short lists of integers are shapes and axes. */
    if (op->code == MIL_OP_const && v->konst && v->konst->data &&
        !(mil_dtype_is_int(v->type.dtype) && v->type.rank == 1)) {
        l->bits = (int)mil_dtype_bits(v->type.dtype);
        l->bytes = v->konst->data->bytes;
        return true;
    }
    l->linear = op->code == MIL_OP_constexpr_blockwise_shift_scale;
    if (op->code != MIL_OP_constexpr_lut_to_dense && !l->linear)
        return false;
    c = mil_arg_const(f, op, 0);
    if (c) {
        l->bits = (int)mil_dtype_bits(c->type.dtype);
        l->bytes = (uint64_t)mil_type_bytes(&c->type);
    }
    c = mil_arg_const(f, op, 1);
    if (c) {
        l->tables =
            (uint64_t)mil_type_elems(&c->type) >> (l->linear ? 0 : l->bits);
        l->bytes += (uint64_t)mil_type_bytes(&c->type);
    }
    return true;
}

static void weights_json(const struct mil_function *f, struct js_writer *w)
{
    js_w_array(w, "weights", false);
    for (size_t i = 0; i < f->n_ops; i++) {
        struct weight_line l;
        char t[MIL_TYPE_TEXT_MAX];

        if (!as_weight(f, &f->ops[i], &l))
            continue;
        mil_type_text(l.type, t);
        js_w_object(w, NULL);
        js_w_string(w, "name", l.name);
        js_w_string(w, "type", t);
        js_w_int(w, "bits", l.bits);
        js_w_uint(w, l.linear ? "scales" : "tables", l.tables);
        js_w_uint(w, "bytes", l.bytes);
        js_w_end(w);
    }
    js_w_end(w);
}

static int function_json(const struct mil_function *f, struct js_writer *w,
                         struct err *e)
{
    struct kinds k;
    int rc = count_ops(&k, f, e);

    js_w_object(w, NULL);
    js_w_string(w, "name", f->name);
    values_json(f, f->inputs, f->n_inputs, "inputs", MIL_V_INPUT, w);
    values_json(f, f->outputs, f->n_outputs, "outputs", -1, w);
    values_json(f, f->inputs, f->n_inputs, "states", MIL_V_STATE, w);
    js_w_object(w, "ops");
    for (size_t i = 0; i < k.n; i++)
        js_w_uint(w, k.items[i].name, k.items[i].count);
    js_w_end(w);
    weights_json(f, w);
    js_w_end(w);
    mem_free(k.items);
    return rc;
}

static int pkg_json(const struct pkg *p, struct js_writer *w, const char *key,
                    struct err *e)
{
    const struct mil_program *prog = pkg_program(p);
    struct pkg_sizes s;
    int rc = 0;

    pkg_sizes(p, &s);
    js_w_object(w, key);
    if (!key)
        js_w_uint(w, "schema", 1);
    js_w_string(w, "kind", "model");
    js_w_string(w, "file", io_basename(pkg_path(p)));
    js_w_bool(w, "compiled", pkg_is_compiled(p));
    js_w_int(w, "specification_version", prog->spec_version);
    js_w_uint(w, "model_bytes", s.model_bytes);
    js_w_uint(w, "weights_bytes", s.weights_bytes);
    js_w_object(w, "metadata");
    for (size_t i = 0; i < prog->n_metadata; i++)
        js_w_string(w, prog->metadata[i].key, prog->metadata[i].value);
    js_w_end(w);
    js_w_array(w, "functions", false);
    for (size_t i = 0; !rc && i < prog->n_functions; i++)
        rc = function_json(prog->functions[i], w, e);
    js_w_end(w);
    js_w_end(w);
    return rc;
}

static int function_text(const struct mil_function *f, struct buf *out,
                         struct err *e)
{
    char t[MIL_TYPE_TEXT_MAX];
    struct kinds k;
    int rc = count_ops(&k, f, e);

    buf_printf(out, "function %s, opset %s, %zu ops\n", f->name, f->opset,
               f->n_ops);
    for (size_t i = 0; i < f->n_inputs; i++) {
        const struct mil_value *v = mil_value(f, f->inputs[i]);

        mil_type_text(&v->type, t);
        buf_printf(out, "  %-6s %-24s %s\n",
                   v->kind == MIL_V_STATE ? "state" : "input", v->name, t);
    }
    for (size_t i = 0; i < f->n_outputs; i++) {
        const struct mil_value *v = mil_value(f, f->outputs[i]);

        mil_type_text(&v->type, t);
        buf_printf(out, "  output %-24s %s\n", v->name, t);
    }
    buf_puts(out, "  ops   ");
    for (size_t i = 0; i < k.n; i++)
        buf_printf(out, " %s %" PRIu64, k.items[i].name, k.items[i].count);
    buf_puts(out, "\n");
    mem_free(k.items);
    return rc;
}

static void weights_text(const struct mil_function *f, struct buf *out)
{
    for (size_t i = 0; i < f->n_ops; i++) {
        struct weight_line l;
        char t[MIL_TYPE_TEXT_MAX], b[NUM_TEXT_MAX];

        if (!as_weight(f, &f->ops[i], &l))
            continue;
        mil_type_text(l.type, t);
        num_bytes_text(b, l.bytes);
        buf_printf(out, "  %-48s %-36s %9s", l.name, t, b);
        if (l.linear)
            buf_printf(out, "  int%d, %" PRIu64 " scales", l.bits, l.tables);
        else if (l.tables)
            buf_printf(out, "  LUT%d, %" PRIu64 " tables", l.bits, l.tables);
        buf_puts(out, "\n");
    }
}

static int pkg_text(const struct pkg *p, bool weights, struct buf *out,
                    struct err *e)
{
    const struct mil_program *prog = pkg_program(p);
    struct pkg_sizes s;
    char a[NUM_TEXT_MAX], b[NUM_TEXT_MAX];
    int rc = 0;

    pkg_sizes(p, &s);
    num_bytes_text(a, s.model_bytes);
    num_bytes_text(b, s.weights_bytes);
    buf_printf(
        out,
        "%s: %sCore ML program, specification version %d, %s of program, "
        "%s of weights\n",
        io_basename(pkg_path(p)), pkg_is_compiled(p) ? "compiled " : "",
        prog->spec_version, a, b);
    for (size_t i = 0; !rc && i < prog->n_functions; i++)
        rc = function_text(prog->functions[i], out, e);
    if (weights) {
        buf_puts(out, "weights\n");
        weights_text(prog->functions[0], out);
    }
    return rc;
}

static int inspect_model(struct cli *c, const struct args *a, struct err *e)
{
    struct pkg *p = pkg_open_raw(a->path, e);
    struct buf out = BUF_INIT;
    struct js_writer w;
    int rc = 0;

    if (!p)
        return cli_fail(c, e);
    if (a->mil) {
        rc = print_mil(c, a, p, e);
    } else if (c->json) {
        js_w_init(&w, &out);
        rc = pkg_json(p, &w, NULL, e);
        buf_puts(&out, "\n");
    } else {
        rc = pkg_text(p, true, &out, e);
    }
    if (!rc)
        cli_print(c, &out);
    buf_release(&out);
    pkg_close(p);
    return rc ? cli_fail(c, e) : EXIT_DONE;
}

/* ---- packages ---- */

static struct pkg *open_part(const struct args *a, const struct meta *m,
                             enum cv_kind kind, int chunk, struct err *e)
{
    char *path = meta_part_path(a->path, m, kind, chunk, META_COMPILED, e);
    struct pkg *p;

    if (path && !io_exists(path)) {
        mem_free(path);
        path = meta_part_path(a->path, m, kind, chunk, META_PACKAGE, e);
    }
    p = path ? pkg_open_raw(path, e) : NULL;
    mem_free(path);
    return p;
}

static int inspect_package(struct cli *c, const struct args *a, struct err *e)
{
    struct buf out = BUF_INIT;
    struct js_writer w;
    struct meta m;
    int chunks, rc = 0;

    if (meta_read(a->path, &m, e))
        return cli_fail(c, e);
    chunks = m.num_chunks ? (int)m.num_chunks : 1;
    js_w_init(&w, &out);
    if (c->json) {
        js_w_object(&w, NULL);
        js_w_uint(&w, "schema", 1);
        js_w_string(&w, "kind", "package");
        js_w_string(&w, "name", m.name);
        js_w_string(&w, "architecture", m.architecture);
        js_w_int(&w, "context_length", m.context_length);
        js_w_int(&w, "batch_size", m.batch_size);
        js_w_int(&w, "num_chunks", chunks);
        js_w_array(&w, "parts", false);
    } else {
        buf_printf(&out,
                   "%s: ANEMLL package, %s, context %" PRId64 ", batch %" PRId64
                   ", %d chunk%s\n",
                   m.name, m.architecture, m.context_length, m.batch_size,
                   chunks, chunks == 1 ? "" : "s");
    }
    for (int i = 0; i < chunks + 2; i++) {
        enum cv_kind kind = i == 0            ? CV_EMBEDDINGS
                            : i == chunks + 1 ? CV_HEAD
                                              : CV_CHUNK;
        struct pkg *p = open_part(a, &m, kind, i, e);

        if (p && c->json)
            rc = pkg_json(p, &w, NULL, e);
        else if (p)
            rc = pkg_text(p, false, &out, e);
        pkg_close(p);
        if (!p || rc) {
            buf_release(&out);
            return cli_fail(c, e);
        }
    }
    if (c->json) {
        js_w_end(&w);
        js_w_end(&w);
        buf_puts(&out, "\n");
    }
    cli_print(c, &out);
    buf_release(&out);
    return EXIT_DONE;
}

/* ---- checkpoints ---- */

static void rope_json(const char *key, const struct rope_params *r,
                      struct js_writer *w)
{
    js_w_object(w, key);
    js_w_string(w, "type", rope_type_name(r->type));
    js_w_double(w, "theta", r->theta);
    js_w_int(w, "dim", r->dim);
    if (r->type != ROPE_DEFAULT)
        js_w_double(w, "factor", r->factor);
    if (r->type == ROPE_YARN || r->type == ROPE_LLAMA3)
        js_w_double(w, "original_max", r->original_max);
    if (r->type == ROPE_PROPORTIONAL)
        js_w_int(w, "pairs_that_turn", r->live);
    js_w_double(w, "attention_scaling", r->attention_scaling);
    js_w_end(w);
}

static void kinds_json(const struct hparams *hp, struct js_writer *w)
{
    static const char *const kinds[] = {
        [HP_LAYER_FULL] = "full_attention",
        [HP_LAYER_LINEAR] = "linear_attention",
        [HP_LAYER_SLIDING] = "sliding_attention",
    };

    js_w_array(w, "layer_types", true);
    for (int64_t i = 0; i < hp->layers; i++)
        js_w_string(w, NULL, kinds[hp->layer_kind[i]]);
    js_w_end(w);
}

/* Families with sliding layers. */
static void window_json(const struct hparams *hp, struct js_writer *w)
{
    kinds_json(hp, w);
    js_w_int(w, "sliding_window", hp->window);
    js_w_int(w, "global_head_dim", hp->global_head_dim);
    js_w_int(w, "num_global_key_value_heads", hp->global_kv_heads);
    js_w_int(w, "num_kv_shared_layers", hp->kv_shared_layers);
    js_w_array(w, "kv_source", true);
    for (int64_t i = 0; i < hp->layers; i++)
        js_w_int(w, NULL, hp_layer_kv_source(hp, i));
    js_w_end(w);
    js_w_bool(w, "attention_k_eq_v", hp->k_eq_v);
    js_w_bool(w, "use_double_wide_mlp", hp->double_wide_mlp);
    js_w_int(w, "hidden_size_per_layer_input", hp->ple_width);
    js_w_double(w, "embedding_scale", hp->embed_scale);
    js_w_double(w, "final_logit_softcapping", hp->final_softcap);
    rope_json("sliding_rope", &hp->rope_local, w);
}

static void experts_json(const struct hparams *hp, struct js_writer *w)
{
    js_w_int(w, "num_experts", hp->experts);
    js_w_int(w, "num_experts_per_tok", hp->experts_per_token);
    js_w_int(w, "moe_intermediate_size", hp->moe_intermediate);
}

static void hparams_json(const struct hparams *hp, struct js_writer *w)
{
    js_w_object(w, "hparams");
    js_w_string(w, "model_type", hp->model_type);
    js_w_string(w, "architecture", hp->architecture);
    js_w_int(w, "vocab_size", hp->vocab);
    js_w_int(w, "hidden_size", hp->hidden);
    js_w_int(w, "intermediate_size", hp->intermediate);
    js_w_int(w, "num_hidden_layers", hp->layers);
    js_w_int(w, "num_attention_heads", hp->heads);
    js_w_int(w, "num_key_value_heads", hp->kv_heads);
    js_w_int(w, "head_dim", hp->head_dim);
    js_w_int(w, "max_position_embeddings", hp->max_positions);
    js_w_double(w, "rms_norm_eps", hp->rms_eps);
    js_w_bool(w, "tie_word_embeddings", hp->tied);
    js_w_string(w, "tied_by", hp->tied_by);
    js_w_bool(w, "attention_bias", hp->attention_bias);
    js_w_bool(w, "mlp_bias", hp->mlp_bias);
    rope_json("rope", &hp->rope, w);
    if (hp->window)
        window_json(hp, w);
    if (hp->experts)
        experts_json(hp, w);
    js_w_uint(w, "parameters", hparams_count(hp));
    js_w_end(w);
}

static void hparams_text(const struct hparams *hp, struct buf *out)
{
    struct buf lines = BUF_INIT;

    buf_printf(out, "%s checkpoint (%s), %" PRIu64 " parameters\n",
               hp->arch->name,
               hp->architecture[0] ? hp->architecture : hp->model_type,
               hparams_count(hp));
    hparams_print(hp, &lines);
    for (const char *s = buf_text(&lines); *s;) {
        size_t n = strcspn(s, "\n");

        buf_printf(out, "  %.*s\n", (int)n, s);
        s += n + (s[n] == '\n');
    }
    buf_release(&lines);
}

static void tensors(const struct ckpt *k, struct js_writer *w, struct buf *out,
                    bool json)
{
    if (json)
        js_w_array(w, "tensors", false);
    for (size_t i = 0; i < st_count(k->st); i++) {
        const struct st_tensor *t = st_at(k->st, i);
        char shape[128];

        st_shape_text(t, shape, sizeof(shape));
        if (!json) {
            buf_printf(out, "  %-56s %-5s %s\n", t->name,
                       st_dtype_name(t->dtype), shape);
            continue;
        }
        js_w_object(w, NULL);
        js_w_string(w, "name", t->name);
        js_w_string(w, "dtype", st_dtype_name(t->dtype));
        js_w_array(w, "shape", true);
        for (int d = 0; d < t->rank; d++)
            js_w_uint(w, NULL, t->dims[d]);
        js_w_end(w);
        js_w_end(w);
    }
    if (json)
        js_w_end(w);
}

/* Weights beside the config? An index alone is none. */
static int has_weights(const char *dir, bool *yes, struct err *e)
{
    char **names;
    size_t n;

    *yes = false;
    if (io_list(dir, &names, &n, e))
        return -1;
    for (size_t i = 0; i < n; i++) {
        size_t len = strlen(names[i]);

        if (len > 12 && !strcmp(names[i] + len - 12, ".safetensors"))
            *yes = true;
    }
    io_list_free(names, n);
    return 0;
}

static int inspect_checkpoint(struct cli *c, const struct args *a,
                              struct err *e)
{
    struct buf out = BUF_INIT;
    struct js_writer w;
    struct ckpt k;
    bool weights = false;

    if (io_is_dir(a->path) && has_weights(a->path, &weights, e))
        return cli_fail(c, e);
    if (ckpt_open(&k, a->path, weights ? 0 : CKPT_CONFIG_ONLY, e))
        return cli_fail(c, e);
    js_w_init(&w, &out);
    if (c->json) {
        js_w_object(&w, NULL);
        js_w_uint(&w, "schema", 1);
        js_w_string(&w, "kind", "checkpoint");
        hparams_json(&k.hp, &w);
    } else {
        hparams_text(&k.hp, &out);
        buf_puts(&out, buf_text(&k.notes));
    }
    if (k.st)
        tensors(&k, &w, &out, c->json);
    if (c->json) {
        js_w_end(&w);
        buf_puts(&out, "\n");
    }
    cli_print(c, &out);
    buf_release(&out);
    ckpt_close(&k);
    return EXIT_DONE;
}

/* ---- weights ---- */

static int print_weights(struct cli *c, const struct weights_query *q,
                         struct err *e)
{
    struct buf out = BUF_INIT;
    struct js_writer w;
    bool sound = true;
    int rc;

    js_w_init(&w, &out);
    rc = weights_table(q, c->json ? &w : NULL, &out, &sound, e);
    if (!rc && c->json)
        buf_puts(&out, "\n");
    if (!rc)
        cli_print(c, &out);
    buf_release(&out);
    return rc ? cli_fail(c, e) : sound ? EXIT_DONE : EXIT_CHECK_FAILED;
}

static int inspect_weights(struct cli *c, const struct args *a, bool package,
                           struct err *e)
{
    struct weights_query q = {
        .path = a->path, .package = package, .par = c->par, .log = &c->log
    };
    struct ckpt k;
    int code;

    if (!a->hf)
        return print_weights(c, &q, e);
    if (ckpt_open(&k, a->hf, 0, e))
        return cli_fail(c, e);
    q.ckpt = &k;
    code = print_weights(c, &q, e);
    ckpt_close(&k);
    return code;
}

static bool ends_with(const char *s, const char *tail)
{
    size_t n = strlen(s), m = strlen(tail);

    while (n && s[n - 1] == '/')
        n--;
    return n > m && !strncmp(s + n - m, tail, m);
}

static int run(struct cli *c, const struct args *a)
{
    struct err e = ERR_INIT;
    char *meta;
    bool package;

    if (ends_with(a->path, ".mlpackage") || ends_with(a->path, ".mlmodel") ||
        ends_with(a->path, ".mlmodelc"))
        return a->weights ? inspect_weights(c, a, false, &e)
                          : inspect_model(c, a, &e);
    if (a->mil)
        return cli_usage(c, "--mil takes a .mlpackage, .mlmodel or .mlmodelc");
    meta = io_join(a->path, "meta.yaml", &e);
    if (!meta)
        return cli_fail(c, &e);
    package = io_exists(meta);
    mem_free(meta);
    if (a->weights && !package)
        return cli_usage(c, "--weights takes a package or one of its models");
    if (a->weights)
        return inspect_weights(c, a, true, &e);
    return package ? inspect_package(c, a, &e) : inspect_checkpoint(c, a, &e);
}

int main(int argc, char **argv)
{
    struct args a = { 0 };
    const struct cli_option options[] = {
        { "--mil", NULL, CLI_FLAG, &a.mil, NULL,
          "the program of one model as MIL text" },
        { "--function", NULL, CLI_TEXT, &a.function, "NAME",
          "with --mil: this function only" },
        { "--weights", NULL, CLI_FLAG, &a.weights, NULL,
          "per tensor: width, group, bytes, error, method" },
        { "--hf", NULL, CLI_TEXT, &a.hf, "DIR",
          "with --weights: measure the errors against this checkpoint" },
        { NULL, NULL, CLI_FLAG, NULL, NULL, NULL }
    };
    struct cli c = { .tool = "anemll-inspect",
                     .usage = "PATH [options]",
                     .about = "Prints what a checkpoint, a package directory "
                              "or one model (.mlpackage, .mlmodel,\n"
                              ".mlmodelc) is and holds.",
                     .options = options,
                     .max_positional = 1 };
    int code = cli_begin(&c, argc, argv);

    if (code >= 0)
        return cli_end(&c, code);
    if (!c.n_positional)
        code = cli_usage(&c, "no path given");
    else if (a.function && !a.mil)
        code = cli_usage(&c, "--function goes with --mil");
    else if (a.hf && !a.weights)
        code = cli_usage(&c, "--hf goes with --weights");
    else if (a.mil && a.weights)
        code = cli_usage(&c, "--mil and --weights are two things to print");
    else {
        a.path = c.positional[0];
        code = run(&c, &a);
    }
    return cli_end(&c, code);
}
