/*
 * The lint: every rule has a package damaged so that it is found, and what
 * else is found there is known too. What is sound is left alone.
 */
#define _XOPEN_SOURCE 700 /* symlink, truncate */

#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "converter/base/io.h"
#include "converter/base/num.h"
#include "converter/lint.h"
#include "mil/build.h"
#include "schema/blob.h"
#include "schema/package.h"
#include "t_conv.h"
#include "t_pack.h"

TestSuite(lint, .fini = t_conv_clean);

#define PF1 "qwen_FFN_PF_lut4_chunk_01of02.mlpackage"
#define PF2 "qwen_FFN_PF_lut4_chunk_02of02.mlpackage"
#define EMB "qwen_embeddings.mlpackage"
#define HEAD "qwen_lm_head_lut4.mlpackage"

/* ---- reports as sets of rules ---- */

static struct lint_report lint(const char *name)
{
    struct lint_report r;
    struct err e = ERR_INIT;

    cr_assert_eq(lint_package(t_conv_path(name), &r, &e), 0, "%s", e.text);
    return r;
}

static bool has(const struct lint_report *r, enum lint_id id)
{
    for (size_t i = 0; i < r->n; i++)
        if (r->v[i].rule == lint_rule(id))
            return true;
    return false;
}

/* Rules found in `r` and not in `base`, in order, joined by ' '. */
static void news(const struct lint_report *r, const struct lint_report *base,
                 char *out, size_t cap)
{
    size_t n = 0;

    out[0] = '\0';
    for (int id = 0; id < (int)LINT_RULES; id++)
        if (has(r, (enum lint_id)id) && !has(base, (enum lint_id)id))
            n += (size_t)snprintf(out + n, cap - n, "%s%s", n ? " " : "",
                                  lint_rule((enum lint_id)id)->id);
}

/* ---- damages ---- */

/* Edits of programs: which value of which function, and what it becomes. */
struct edit {
    const char *function; /* NULL: all */
    const char *name, *to;
    int axis;
    int64_t value;
};

static bool applies(const struct edit *e, const struct mil_function *f)
{
    return !e->function || !strcmp(e->function, f->name);
}

static struct mil_value *value_of(struct mil_function *f, const char *name)
{
    mil_ref r = mil_find_value(f, name);

    cr_assert_neq(r, 0, "%s has no '%s'", f->name, name);
    return mil_value(f, r);
}

static void rename_value(struct mil_program *p, const void *arg)
{
    const struct edit *e = arg;

    for (size_t i = 0; i < p->n_functions; i++)
        if (applies(e, p->functions[i]))
            value_of(p->functions[i], e->name)->name = e->to;
}

static void set_dim(struct mil_program *p, const void *arg)
{
    const struct edit *e = arg;

    for (size_t i = 0; i < p->n_functions; i++)
        if (applies(e, p->functions[i]))
            value_of(p->functions[i], e->name)->type.dims[e->axis] = e->value;
}

static void set_dtype(struct mil_program *p, const void *arg)
{
    const struct edit *e = arg;

    for (size_t i = 0; i < p->n_functions; i++)
        if (applies(e, p->functions[i]))
            value_of(p->functions[i], e->name)->type.dtype =
                (enum mil_dtype)e->value;
}

static void rename_function(struct mil_program *p, const void *arg)
{
    const struct edit *e = arg;

    for (size_t i = 0; i < p->n_functions; i++)
        if (applies(e, p->functions[i]))
            p->functions[i]->name = e->to;
}

static void swap_functions(struct mil_program *p, const void *arg)
{
    struct mil_function *f = p->functions[0];

    (void)arg;
    p->functions[0] = p->functions[1];
    p->functions[1] = f;
}

static void set_metadata(struct mil_program *p, const void *arg)
{
    const struct edit *e = arg;

    for (size_t i = 0; i < p->n_metadata; i++)
        if (!strcmp(p->metadata[i].key, e->name))
            p->metadata[i].value = e->to;
}

/* One op's code becomes another with the same parameters. */
static void set_code(struct mil_program *p, const void *arg)
{
    const struct edit *e = arg;

    for (size_t i = 0; i < p->n_functions; i++)
        for (size_t k = 0; k < p->functions[i]->n_ops; k++)
            if (applies(e, p->functions[i]) &&
                p->functions[i]->ops[k].code == (enum mil_opcode)e->axis)
                p->functions[i]->ops[k].code = (enum mil_opcode)e->value;
}

static void add_state(struct mil_program *p, const void *arg)
{
    const struct edit *e = arg;
    struct mil_type t =
        mil_type_make(MIL_F16, 3, (const int64_t[]){ 2, 64, e->value });
    struct err err = ERR_INIT;

    for (size_t i = 0; i < p->n_functions; i++)
        if (applies(e, p->functions[i]))
            cr_assert_neq(mil_add_value(p->functions[i], MIL_V_STATE, e->name,
                                        &t, &err),
                          0, "%s", err.text);
}

static void add_input(struct mil_program *p, const void *arg)
{
    const struct edit *e = arg;
    struct mil_type t = mil_type_make(MIL_F16, 1, (const int64_t[]){ 1 });
    struct err err = ERR_INIT;

    cr_assert_neq(mil_add_value(p->functions[0], MIL_V_INPUT, e->name, &t,
                                &err),
                  0);
}

/* Positions are cast to int32, which they are, instead of uint16. */
static void wide_indices(struct mil_program *p, const void *arg)
{
    static const char *const wide[] = { "int32" };

    (void)arg;
    for (size_t i = 0; i < p->n_functions; i++) {
        struct mil_function *f = p->functions[i];

        for (size_t k = 0; k < f->n_ops; k++)
            if (f->ops[k].code == MIL_OP_cast) {
                struct mil_const c = *mil_arg_const(f, &f->ops[k], 1);
                struct err err = ERR_INIT;

                c.strings = wide;
                mil_value(f, mil_arg(&f->ops[k], 1))->konst =
                    mil_copy_const(p, &c, &err);
                mil_value(f, f->ops[k].outs[0])->type.dtype = MIL_I32;
            }
    }
}

/* infer's weights by copies of their own: read through another mil_data. */
static void part_weights(struct mil_program *p, const void *arg)
{
    struct mil_function *f = p->functions[0];
    struct err err = ERR_INIT;

    (void)arg;
    for (size_t i = 1; i < f->n_values; i++) {
        const struct mil_const *c = f->values[i].konst;
        struct mil_const own;
        unsigned char *bytes;

        if (!c || !c->data)
            continue;
        own = *c;
        bytes = arena_alloc(&p->arena, (size_t)c->data->bytes, 1, &err);
        cr_assert_eq(c->data->read(c->data->cookie, 0, bytes,
                                   (size_t)c->data->bytes, &err),
                     0);
        bytes[0] ^= 1;
        own.data = NULL;
        own.bytes = bytes;
        f->values[i].konst = mil_copy_const(p, &own, &err);
    }
}

/* An enormous constant that nothing uses: its dims are patched in the bytes,
 * the blob's record and the file's length after it. */
static void add_small(struct mil_program *p, const void *arg)
{
    static const uint16_t zeros[16];
    static struct mil_data d;
    struct mil_function *f = p->functions[0];
    struct mil_const k;
    struct err err = ERR_INIT;
    mil_ref r;

    (void)arg;
    d.type = mil_type_make(MIL_F16, 5, (const int64_t[]){ 1, 1, 1, 1, 16 });
    d.bytes = sizeof(zeros);
    d.read = mil_data_read_memory;
    d.cookie = (void *)(uintptr_t)zeros;
    k = (struct mil_const){ d.type, NULL, NULL, &d };
    r = mil_add_output(f, mil_add_op(f, MIL_OP_const, "huge", &err), "huge",
                       &d.type, &err);
    cr_assert_neq(r, 0);
    mil_value(f, r)->konst = mil_copy_const(p, &k, &err);
}

static void make_huge(const char *pack)
{
    static const char dim[] = { 0x1a, 0x04, 0x0a, 0x02, 0x08 };
    static const char sizes[] = { 17, 64, 64, 127, 127 };
    uint64_t bytes = 2ull * 17 * 64 * 64 * 127 * 127, at = 0;
    char model[400], weights[400];
    struct blob_reader r = BLOB_READER_INIT;
    struct blob_record rec = { 0 };
    struct err err = ERR_INIT;
    unsigned char word[8];
    size_t len, hits = 0;
    char *text;
    FILE *f;

    t_pack_program(pack, HEAD, add_small, NULL);
    snprintf(model, sizeof(model), "%s/" HEAD "/Data/com.apple.CoreML/%s", pack,
             "model.mlmodel");
    snprintf(weights, sizeof(weights), "%s/" HEAD "/Data/com.apple.CoreML/%s",
             pack, "weights/weight.bin");
    text = t_conv_text(model, &len);
    for (size_t i = 0; i + 30 < len; i++) {
        int k = 0;

        while (k < 5 && !memcmp(text + i + 6 * k, dim, 5) &&
               text[i + 6 * (size_t)k + 5] == (k < 4 ? 1 : 16))
            k++;
        for (int n = 0; k == 5 && n < 5; n++)
            text[i + 6 * (size_t)n + 5] = sizes[n];
        hits += k == 5;
    }
    cr_assert_geq(hits, 1);
    f = fopen(t_conv_path(model), "wb");
    cr_assert(f && fwrite(text, 1, len, f) == len && !fclose(f));
    mem_free(text);
    cr_assert_eq(blob_open(&r, t_conv_path(weights), &err), 0, "%s", err.text);
    while (blob_next(&r, &at, &rec, &err) == 1 && rec.bytes != 32)
        ;
    blob_close(&r);
    cr_assert_eq(rec.bytes, 32);
    f = fopen(t_conv_path(weights), "r+b");
    cr_assert_not_null(f);
    store_le64(word, bytes);
    cr_assert_eq(fseek(f, (long)rec.offset + 8, SEEK_SET), 0);
    cr_assert_eq(fwrite(word, 1, 8, f), 8);
    cr_assert_eq(fclose(f), 0);
    cr_assert_eq(truncate(t_conv_path(weights), (off_t)(rec.data + bytes)), 0);
}

static void link_config(const char *pack)
{
    t_pack_rename(pack, "config.json", "real.json");
    cr_assert_eq(symlink("real.json", t_conv_path("p/config.json")), 0);
}

static void grow_weights(const char *pack, const char *part)
{
    char file[400];

    snprintf(file, sizeof(file),
             "%s/%s/Data/com.apple.CoreML/weights/weight.bin", pack, part);
    t_pack_own(pack, file + strlen(pack) + 1);
    cr_assert_eq(truncate(t_conv_path(file), 1000000001), 0);
}

static void grow_head(const char *pack)
{
    grow_weights(pack, HEAD);
}

static void grow_table(const char *pack)
{
    grow_weights(pack, EMB);
}

static char *find_bytes(char *text, size_t len, const char *word)
{
    size_t n = strlen(word);

    for (size_t i = 0; i + n <= len; i++)
        if (!memcmp(text + i, word, n))
            return text + i;
    return NULL;
}

/* One byte of a program's file: the last of the first `word`. */
static void set_byte(const char *pack, const char *part, const char *word,
                     char to)
{
    char file[400], whole[500], *text, *p;
    size_t len;
    FILE *f;

    snprintf(file, sizeof(file), "%s/Data/com.apple.CoreML/model.mlmodel",
             part);
    snprintf(whole, sizeof(whole), "%s/%s", pack, file);
    t_pack_own(pack, file);
    text = t_conv_text(whole, &len);
    p = find_bytes(text, len, word);
    cr_assert_not_null(p);
    p[strlen(word) - 1] = to;
    f = fopen(t_conv_path(whole), "wb");
    cr_assert(f && fwrite(text, 1, len, f) == len && !fclose(f));
    mem_free(text);
}

/* The description stands in front of the program. */
static void bend_description(const char *pack)
{
    set_byte(pack, PF1, "position_ids", 'z');
}

static void bend_op(const char *pack)
{
    set_byte(pack, PF1, "softmax", 'z');
}

/* The version is the message's first field. */
static void old_version(const char *pack)
{
    set_byte(pack, PF1, "\x08\x09", 8);
}

/* A chunk that hands its input on. */
static void pass_on(struct mb *b, struct mil_program *p, const char *name,
                    int64_t T)
{
    struct err err = ERR_INIT;
    mil_ref x;

    mb_begin(b, p, name);
    x = mb_input(b, "hidden_states", MIL_F16, 3, (int64_t[]){ 1, T, 128 });
    mb_input(b, "position_ids", MIL_I32, 1, &T);
    mb_input(b, "causal_mask", MIL_F16, 4, (int64_t[]){ 1, 1, T, 64 });
    mb_input(b, "current_pos", MIL_I32, 1, (int64_t[]){ 1 });
    mb_output(b, "output_hidden_states", x);
    cr_assert_eq(mb_end(b, &err), 0, "%s", err.text);
}

static void no_state(const char *pack)
{
    struct err err = ERR_INIT;
    struct mil_program *p = mil_program_new(&err);
    struct mb b;
    char path[400];

    pass_on(&b, p, "infer", 1);
    pass_on(&b, p, "prefill", 16);
    t_pack_remove(pack, PF1);
    snprintf(path, sizeof(path), "%s/" PF1, pack);
    cr_assert_eq(pkg_write(t_conv_path(path), p, NULL, NULL, &err), 0, "%s",
                 err.text);
    mil_program_free(p);
}

/* A place in the program's file that is no other in its protobuf. */
static void bend_folder(const char *pack)
{
    set_byte(pack, PF1, "@model_path/weights", 'z');
}

static void bare_folder(const char *pack)
{
    t_pack_put(pack, "qwen_embeddings.mlmodelc/model.mil", "program(1.3)\n");
}

static void no_metadata(const char *pack)
{
    bare_folder(pack);
    t_pack_put(pack, "qwen_embeddings.mlmodelc/coremldata.bin", "x");
}

static void compiled_alone(const char *pack)
{
    no_metadata(pack);
    t_pack_put(pack, "qwen_embeddings.mlmodelc/metadata.json", "[{}]");
    t_pack_remove(pack, EMB);
}

/* ---- one row a rule ---- */

enum kind { END, META, EDIT, PUT, REMOVE, RENAME, PROGRAM, CALL };
struct step {
    enum kind kind;
    const char *file, *a, *b;
    void (*change)(struct mil_program *p, const void *arg);
    struct edit edit;
    void (*call)(const char *pack);
};
#define META(from, to)                                 \
    {                                                  \
        META, "meta.yaml", from, to, NULL, { 0 }, NULL \
    }
#define EDIT(file, from, to)                    \
    {                                           \
        EDIT, file, from, to, NULL, { 0 }, NULL \
    }
#define PUT(file, text)                          \
    {                                            \
        PUT, file, text, NULL, NULL, { 0 }, NULL \
    }
#define REMOVE(file)                                \
    {                                               \
        REMOVE, file, NULL, NULL, NULL, { 0 }, NULL \
    }
#define RENAME(from, to)                          \
    {                                             \
        RENAME, from, to, NULL, NULL, { 0 }, NULL \
    }
#define CALL(f)                                \
    {                                          \
        CALL, NULL, NULL, NULL, NULL, { 0 }, f \
    }
#define PROGRAM(file, change, ...)                               \
    {                                                            \
        PROGRAM, file, NULL, NULL, change, { __VA_ARGS__ }, NULL \
    }

static const struct row {
    const char *rule, *found; /* what else is found: NULL for nothing */
    struct step steps[4];
} rows[] = {
    { "meta_missing", NULL, { REMOVE("meta.yaml") } },
    { "meta_unreadable", NULL, { META("  version:", "\tversion:") } },
    { "meta_layout", NULL, { META("  parameters:", "  settings:") } },
    { "meta_key_missing", NULL, { META("    batch_size: 16\n", "") } },
    { "meta_key_twice",
      "meta_key_twice meta_shell",
      { META("    batch_size: 16\n",
             "    batch_size: 16\n    batch_size: 16\n") } },
    { "meta_key_unknown", NULL, { META("    num_layers:", "    nm_layers:") } },
    { "meta_key_legacy",
      NULL,
      { META("    split_lm_head: 16\n",
             "    split_lm_head: 16\n    num_logits: 16\n") } },
    { "meta_type", NULL, { META("num_layers: 3", "num_layers: \"3\"") } },
    { "meta_range", NULL, { META("num_layers: 3", "num_layers: 0") } },
    { "meta_version", NULL, { META("version: 0.3.5", "version: 0.3") } },
    { "meta_shell",
      "meta_key_unknown meta_shell",
      { META("    num_layers: 3\n",
             "    num_layers: 3\n    old_lut_ffn: 4\n") } },
    { "meta_prefill_flags",
      NULL,
      { META("    prefill_dynamic_slice: true\n", "") } },
    { "meta_vocab_keys", NULL, { META("    vocab_size: 512\n", "") } },
    { "meta_sampling", NULL, { META("top_p: 0.95", "top_p: 1.5") } },
    { "meta_prefix",
      "meta_prefix part_names",
      { META("model_prefix: qwen", "model_prefix: q.wen") } },
    { "meta_prefix_gemma3",
      "meta_prefix_gemma3 part_names",
      { META("model_prefix: qwen",
             "model_prefix: gemma3\n    sliding_window: 32") } },
    { "meta_split_rotate",
      NULL,
      { META("    num_layers: 3\n",
             "    num_layers: 3\n    split_rotate: true\n") } },
    { "meta_batch",
      "meta_batch input_type output_type embeddings_shapes metadata_differs",
      { META("batch_size: 16", "batch_size: 128") } },
    { "meta_file_key",
      NULL,
      { META("embeddings: qwen_embeddings.mlmodelc",
             "embeddings: ../x/qwen_embeddings.mlmodelc") } },
    { "meta_layer_types",
      "meta_layer_types state_layers",
      { META("    num_layers: 3\n",
             "    num_layers: 3\n    layer_types: [full, full]\n") } },
    { "meta_layer_order",
      "meta_layer_order meta_state_layers state_layers",
      { META("    num_layers: 3\n",
             "    num_layers: 3\n    layer_types: [full, full, linear]\n") } },
    { "meta_states",
      NULL,
      { META("shape: [6, 2, 64, 32]", "shape: [6, 2, 32, 64]") } },
    { "meta_state_layers", NULL, { META("layers: [0, 1, 2]", "layers: [0]") } },
    { "meta_state_layers",
      NULL,
      { META("layers: [0, 1, 2]", "layers: [0, 2, 1]") } },
    { "meta_state_layers",
      NULL,
      { META("layers: [0, 1, 2]", "layers: [1, 2, 3]") } },
    { "meta_state_layers", NULL, { META("layers: [0, 1, 2]", "layers: all") } },
    { "meta_recurrent",
      "meta_states meta_recurrent meta_full_batches state_unread state_shapes",
      { PROGRAM(PF1, add_state, .name = "model_model_gdn_state_0", .value = 32),
        PROGRAM(PF2, add_state, .name = "model_model_gdn_state_0",
                .value = 32) } },
    { "meta_last_token",
      NULL,
      { PROGRAM(PF2, set_dim, .function = "prefill",
                .name = "output_hidden_states", .axis = 1, .value = 16) } },
    { "meta_argmax",
      NULL,
      { META("    num_layers: 3\n",
             "    num_layers: 3\n    argmax_in_model: true\n") } },
    { "meta_hidden_size",
      NULL,
      { META("hidden_size: 128", "hidden_size: 256") } },

    { "part_missing", NULL, { REMOVE(HEAD) } },
    { "part_source_missing",
      "part_source_missing program_unreadable",
      { CALL(compiled_alone) } },
    { "part_names",
      "part_names lut_bits",
      { META("lut_lmhead: 4", "lut_lmhead: 6") } },
    { "chunk_name",
      "part_missing chunk_name model_stray",
      { RENAME(PF2, "qwen_FFN_PF_lut4_chunk_2of2.mlpackage") } },
    { "chunk_count",
      "chunk_name chunk_count model_stray",
      { PUT("qwen_FFN_PF_lut4_chunk_01of02_rot.mlpackage/x", "x") } },
    { "chunk_total",
      "chunk_total metadata_differs",
      { META("num_chunks: 2", "num_chunks: 3") } },
    { "model_stray", NULL, { PUT("qwen_FFN_chunk_01of02.mlpackage/x", "x") } },
    { "file_stray", NULL, { PUT("meta_progress.yaml", "x") } },
    { "file_link", "file_stray file_link", { CALL(link_config) } },
    { "file_placeholder",
      "file_placeholder tokenizer_broken template_missing",
      { PUT("tokenizer_config.json",
            "version https://git-lfs.github.com/spec/v1\noid sha256:"
            "0123456789012345678901234567890123456789012345678901234567890123"
            "\nsize 12345\n") } },
    { "weights_folder", NULL, { CALL(bend_folder) } },
    { "weights_phone", "file_placeholder weights_phone", { CALL(grow_head) } },
    { "weights_table", "file_placeholder weights_table", { CALL(grow_table) } },
    { "weight_too_large",
      "file_placeholder weights_phone weight_too_large",
      { CALL(make_huge) } },
    { "path_inside",
      NULL,
      { EDIT("config.json", "{",
             "{\n  \"_name_or_path\": \"/home/somebody/model\",") } },
    { "gate_failed", NULL, { PUT("gate.json", "{\"verdict\": \"FAIL\"}") } },

    { "compiled_incomplete", NULL, { CALL(bare_folder) } },
    { "compiled_metadata", NULL, { CALL(no_metadata) } },

    { "program_unreadable",
      NULL,
      { PUT(HEAD "/Data/com.apple.CoreML/model.mlmodel", "no program") } },
    { "program_invalid",
      NULL,
      { PROGRAM(PF1, set_code, .function = "infer", .axis = MIL_OP_tanh,
                .value = MIL_OP_logical_not) } },
    { "program_description", NULL, { CALL(bend_description) } },
    { "program_op_unknown", NULL, { CALL(bend_op) } },
    { "program_version", NULL, { CALL(old_version) } },
    { "program_weights_apart", NULL, { PROGRAM(PF1, part_weights, NULL) } },

    { "function_missing",
      "function_missing function_unknown",
      { PROGRAM(PF1, rename_function, .function = "prefill", .to = "fill") } },
    { "function_default", NULL, { PROGRAM(PF1, swap_functions, NULL) } },
    { "function_unknown",
      "function_missing function_default function_unknown",
      { PROGRAM(PF2, rename_function, .function = "infer", .to = "infer2") } },
    { "input_missing",
      "input_missing input_unknown",
      { PROGRAM(PF1, rename_value, .name = "current_pos", .to = "pos") } },
    { "input_unknown", NULL, { PROGRAM(HEAD, add_input, .name = "mask") } },
    { "input_type",
      NULL,
      { PROGRAM(PF1, set_dim, .function = "prefill", .name = "causal_mask",
                .axis = 2, .value = 8) } },
    { "output_missing",
      "output_missing head_parts head_vocab head_sizes",
      { PROGRAM(HEAD, rename_value, .name = "logits7", .to = "logits_7") } },
    { "output_type",
      "output_type ane_refused",
      { PROGRAM(HEAD, set_dtype, .name = "logits7", .value = MIL_F32) } },
    { "shape_flexible",
      NULL,
      { PROGRAM(HEAD, set_dim, .name = "logits16", .axis = 1,
                .value = MIL_DIM_UNKNOWN) } },
    { "prefill_rows",
      "program_invalid prefill_rows",
      { META("    prefill_last_token_output: true\n", ""),
        PROGRAM(PF2, set_dim, .function = "prefill",
                .name = "output_hidden_states", .axis = 1, .value = 16) } },
    { "embeddings_shapes",
      "input_type output_type embeddings_shapes metadata_differs",
      { META("batch_size: 16", "batch_size: 32") } },
    { "embeddings_rows",
      "embeddings_rows head_vocab head_sizes metadata_differs",
      { META("vocab_size: 512", "vocab_size: 528"),
        META("lm_head_chunk_sizes: [32", "lm_head_chunk_sizes: [48") } },
    { "hidden_differs",
      NULL,
      { PROGRAM(HEAD, set_dim, .name = "hidden_states", .axis = 2,
                .value = 64) } },
    { "head_parts", NULL, { META("split_lm_head: 16", "split_lm_head: 8") } },
    { "head_uneven",
      NULL,
      { PROGRAM(HEAD, set_dim, .name = "logits1", .axis = 2, .value = 33),
        PROGRAM(HEAD, set_dim, .name = "logits2", .axis = 2, .value = 31),
        META("[32, 32,", "[33, 31,") } },
    { "head_vocab",
      "head_vocab metadata_differs",
      { META("vocab_size: 512", "vocab_size: 500") } },
    { "head_sizes", NULL, { META("[32, 32,", "[33, 31,") } },
    { "runtime_extended",
      NULL,
      { META("    num_layers: 3\n",
             "    num_layers: 3\n    recurrent_state: true\n") } },

    { "state_missing",
      "meta_states state_missing state_differs lut_bits",
      { CALL(no_state) } },
    { "state_differs",
      "state_differs state_layers",
      { PROGRAM(PF2, set_dim, .function = "infer",
                .name = "model_model_kv_cache_0", .axis = 0, .value = 4) } },
    { "state_type",
      "state_differs state_type",
      { PROGRAM(PF1, set_dtype, .name = "model_model_kv_cache_0",
                .value = MIL_F32) } },
    { "state_unread",
      NULL,
      { PROGRAM(PF1, set_code, .function = "infer", .axis = MIL_OP_read_state,
                .value = MIL_OP_identity) } },
    { "state_name",
      NULL,
      { PROGRAM(PF1, rename_value, .name = "model_model_kv_cache_0",
                .to = "kv_cache"),
        PROGRAM(PF2, rename_value, .name = "model_model_kv_cache_0",
                .to = "kv_cache"),
        META("name: model_model_kv_cache_0", "name: kv_cache") } },
    { "state_context",
      NULL,
      { PROGRAM(PF1, set_dim, .name = "model_model_kv_cache_0", .axis = 2,
                .value = 32),
        PROGRAM(PF2, set_dim, .name = "model_model_kv_cache_0", .axis = 2,
                .value = 32),
        META("shape: [6, 2, 64, 32]", "shape: [6, 2, 32, 32]") } },
    { "state_layers",
      "meta_state_layers state_layers",
      { PROGRAM(PF1, set_dim, .name = "model_model_kv_cache_0", .axis = 0,
                .value = 8),
        PROGRAM(PF2, set_dim, .name = "model_model_kv_cache_0", .axis = 0,
                .value = 8),
        META("shape: [6, 2, 64, 32]", "shape: [8, 2, 64, 32]") } },
    { "state_axis_3",
      "meta_states meta_recurrent meta_full_batches state_differs state_unread "
      "state_axis_3 "
      "state_shapes",
      { PROGRAM(PF1, add_state, .name = "model_model_conv_state_0",
                .value = 3) } },
    { "state_axis_32",
      "meta_states meta_recurrent meta_full_batches state_differs state_unread "
      "state_axis_32 "
      "state_shapes",
      { PROGRAM(PF1, add_state, .name = "model_model_conv_state_0",
                .value = 48) } },
    { "state_axis_limit",
      "meta_states meta_recurrent meta_full_batches state_differs state_unread "
      "state_axis_limit "
      "state_shapes",
      { PROGRAM(PF1, add_state, .name = "model_model_conv_state_0",
                .value = 32768) } },
    { "state_many",
      "meta_states meta_recurrent meta_full_batches state_differs state_unread "
      "state_many "
      "state_shapes",
      { PROGRAM(PF1, add_state, .name = "model_model_conv_state_0",
                .value = 32),
        PROGRAM(PF1, add_state, .name = "model_model_gdn_state_0",
                .value = 32) } },
    { "state_shapes",
      "meta_states state_differs state_unread state_shapes",
      { PROGRAM(PF1, add_state, .name = "model_model_kv_cache_local",
                .value = 64) } },

    { "metadata_number",
      NULL,
      { PROGRAM(HEAD, set_metadata, .name = "com.anemll.lut_bits",
                .to = "none") } },
    { "metadata_differs",
      NULL,
      { PROGRAM(HEAD, set_metadata, .name = "com.anemll.context_length",
                .to = "512") } },
    { "metadata_chunk",
      "meta_last_token output_type metadata_chunk metadata_layers",
      { RENAME(PF1, "x"), RENAME(PF2, PF1), RENAME("x", PF2) } },
    { "metadata_layers",
      NULL,
      { PROGRAM(PF2, set_metadata, .name = "com.anemll.layers",
                .to = "1-2") } },
    { "lut_bits",
      NULL,
      { META("lut_ffn: 4", "lut_ffn: none"),
        RENAME(PF1, "qwen_FFN_PF_chunk_01of02.mlpackage"),
        RENAME(PF2, "qwen_FFN_PF_chunk_02of02.mlpackage"),
        META("ffn: qwen_FFN_PF_lut4_", "ffn: qwen_FFN_PF_") } },
    { "lut_group",
      NULL,
      { META("lut_ffn_per_channel: 8", "lut_ffn_per_channel: 16") } },
    { "lut_group",
      NULL,
      { META("lut_lmhead_per_channel: 8", "lut_lmhead_per_channel: 0") } },
    { "quant_bits",
      NULL,
      { META("    lut_ffn: 4\n", "    lut_ffn: 4\n    quant_ffn: int8\n") } },

    { "tokenizer_missing", NULL, { REMOVE("tokenizer.json") } },
    { "tokenizer_config_missing",
      "tokenizer_config_missing template_missing",
      { REMOVE("tokenizer_config.json") } },
    { "tokenizer_broken", NULL, { PUT("tokenizer.json", "{\"model\": {}}") } },
    { "tokenizer_class",
      NULL,
      { EDIT("tokenizer_config.json", "PreTrainedTokenizerFast",
             "TokenizersBackend") } },
    { "tokenizer_ids",
      NULL,
      { EDIT("tokenizer.json", "\"added_tokens\": [",
             "\"added_tokens\": [{\"id\": 512, \"content\": \"<x>\"},") } },
    { "template_missing",
      NULL,
      { EDIT("tokenizer_config.json", "\"chat_template\"", "\"template\"") } },
    { "template_form",
      NULL,
      { EDIT("tokenizer_config.json", "\"chat_template\"", "\"template\""),
        PUT("chat_template.jinja", "{{ messages }}") } },
    { "template_differs",
      NULL,
      { PUT("chat_template.jinja", "{{ messages }}") } },
    { "config_missing", NULL, { REMOVE("config.json") } },
    { "config_broken", NULL, { PUT("generation_config.json", "[1]") } },
    { "config_type",
      NULL,
      { EDIT("config.json", "\"tokenizer_class\"", "\"tokenizer\"") } },
    { "stop_missing",
      NULL,
      { EDIT("config.json", "\"eos_token_id\"", "\"eos\"") } },
    { "stop_incomplete",
      NULL,
      { EDIT("generation_config.json", "258,", "258, 257,") } },
    { "stop_range",
      NULL,
      { EDIT("config.json", "[258, 256]", "[258, 256, 512]") } },
    { "stop_template",
      NULL,
      { EDIT("config.json", "[258, 256]", "[256]"),
        EDIT("generation_config.json", "258,", "") } },

    { "ane_refused", NULL, { PROGRAM(PF1, wide_indices, NULL) } },
    { "ane_wrong",
      NULL,
      { PROGRAM(PF1, set_code, .axis = MIL_OP_tanh,
                .value = MIL_OP_sigmoid) } },
};
#define N_ROWS (sizeof(rows) / sizeof(rows[0]))

/* Damages of a package of three recurrent layers, a full one, and experts. */
static const struct row hybrid_rows[] = {
    { "meta_layer_words",
      NULL,
      { META("[linear, linear, linear, full]",
             "[linear, linear, linear, full_attention]") } },
    { "meta_layer_order",
      "meta_layer_order meta_state_layers",
      { META("[linear, linear, linear, full]",
             "[linear, full, linear, linear]") } },
    { "meta_states_missing",
      "meta_key_unknown meta_states_missing",
      { META("    states:", "    states_old:") } },
    { "meta_state_layers",
      NULL,
      { META("layers: [0, 1, 2]", "layers: [0, 1]") } },
    { "meta_full_batches",
      NULL,
      { META("full_batches_only: true", "full_batches_only: false") } },
    { "meta_full_batches",
      NULL,
      { META("    prefill_full_batches_only: true\n", "") } },
    { "meta_gdn_chunk", NULL, { META("chunk_size: 16", "chunk_size: 32") } },
    { "meta_gdn_chunk", NULL, { META("chunk_size: 16", "chunk_size: 2") } },
    { "meta_moe", NULL, { META("experts: 16", "experts: 60") } },
    { "meta_moe", NULL, { META("per_token: 4", "per_token: 17") } },
    { "meta_moe", NULL, { META("experts: 16, ", "") } },
    { "meta_moe", NULL, { META("dense", "sparse") } },
};
#define N_HYBRID (sizeof(hybrid_rows) / sizeof(hybrid_rows[0]))

static void damage(const struct step *s)
{
    switch (s->kind) {
    case META:
    case EDIT: t_pack_edit("p", s->file, s->a, s->b); break;
    case PUT: t_pack_put("p", s->file, s->a); break;
    case REMOVE: t_pack_remove("p", s->file); break;
    case RENAME: t_pack_rename("p", s->file, s->a); break;
    case PROGRAM: t_pack_program("p", s->file, s->change, &s->edit); break;
    case CALL: s->call("p"); break;
    case END: break;
    }
}

static void make(void)
{
    T_PACK_MAKE("base", .arch = "qwen3", .like = "tiny", .lut = "4",
                .chunks = 2);
}

static void find_damages(const struct row *list, size_t n)
{
    struct lint_report base = lint("base"), r;
    char got[1000];
    const char *want;

    cr_expect_eq(base.errors, 0);
    for (size_t i = 0; i < n; i++) {
        t_pack_copy("base", "p");
        for (const struct step *s = list[i].steps; s->kind != END; s++)
            damage(s);
        r = lint("p");
        news(&r, &base, got, sizeof(got));
        want = list[i].found ? list[i].found : list[i].rule;
        cr_expect(!strcmp(got, want), "%s: found '%s', expected '%s'",
                  list[i].rule, got, want);
        lint_release(&r);
    }
    lint_release(&base);
}

Test(lint, each_damage_is_found)
{
    make();
    find_damages(rows, N_ROWS);
}

Test(lint, each_damage_of_a_hybrid_is_found)
{
    T_PACK_MAKE("base", .arch = "qwen3_5_moe", .like = "tiny", .lut = "4",
                .chunks = 2);
    find_damages(hybrid_rows, N_HYBRID);
}

/* One cache for all layers: kinds that share it are one. */
Test(lint, layers_of_one_cache)
{
    struct lint_report r;

    make();
    t_pack_copy("base", "p");
    t_pack_edit("p", "meta.yaml", "    num_layers: 3\n",
                "    num_layers: 3\n    layer_types: [full, sliding, full]\n");
    r = lint("p");
    cr_expect_eq(r.errors, 0);
    lint_release(&r);
}

/* ---- two forms of a part ---- */

static void expect_differs(const char *what)
{
    struct lint_report none = { 0 }, r = lint("p");
    char got[1000];

    news(&r, &none, got, sizeof(got));
    cr_expect_str_eq(got, "compiled_differs");
    cr_assert_geq(r.n, 1);
    cr_expect(strstr(r.v[0].what, what), "%s", r.v[0].what);
    lint_release(&r);
}

Test(lint, a_compiled_form_that_differs)
{
    static const char weights[] = "p/qwen_lm_head_lut4.mlmodelc/weights/"
                                  "weight.bin";
    struct lint_report r;
    FILE *out;
    int byte;

    T_PACK_MAKE("base", .arch = "qwen3", .like = "tiny", .lut = "4",
                .chunks = 2, .both = true);
    r = lint("base");
    cr_expect_eq(r.n, 0);
    lint_release(&r);
    t_pack_copy("base", "p");
    t_pack_remove("p", "qwen_FFN_PF_lut4_chunk_02of02.mlmodelc");
    cr_assert_eq(rename(t_conv_path("p/qwen_FFN_PF_lut4_chunk_01of02.mlmodelc"),
                        t_conv_path(
                            "p/qwen_FFN_PF_lut4_chunk_02of02.mlmodelc")),
                 0);
    t_pack_copy("base", "q");
    t_pack_rename("q", "qwen_FFN_PF_lut4_chunk_01of02.mlmodelc", "x");
    cr_assert_eq(rename(t_conv_path("q/x"),
                        t_conv_path(
                            "p/qwen_FFN_PF_lut4_chunk_01of02.mlmodelc")),
                 0);
    expect_differs("are not one model");
    t_pack_copy("base", "p");
    t_pack_own("p", weights + 2);
    out = fopen(t_conv_path(weights), "r+b");
    cr_assert(out && !fseek(out, 200, SEEK_SET));
    byte = fgetc(out);
    cr_assert(!fseek(out, 200, SEEK_SET) && fputc(byte ^ 1, out) >= 0 &&
              !fclose(out));
    expect_differs("differ at byte 200");
}

/* Mixed widths: a chunk may have none of the narrowest. */
Test(lint, mixed_widths)
{
    struct lint_report r;

    make();
    t_pack_copy("base", "p");
    t_pack_edit("p", "meta.yaml", "lut_ffn: 4", "lut_ffn: 3");
    r = lint("p");
    cr_expect(has(&r, LINT_ID_lut_bits));
    lint_release(&r);
    t_pack_edit("p", "meta.yaml", "lut_ffn: 3",
                "lut_ffn: 3\n    lut_ffn_mixed: 3.90");
    r = lint("p");
    cr_expect(!has(&r, LINT_ID_lut_bits));
    lint_release(&r);
}

static bool has_row(const char *id)
{
    for (size_t i = 0; i < N_ROWS; i++)
        if (!strcmp(rows[i].rule, id))
            return true;
    for (size_t i = 0; i < N_HYBRID; i++)
        if (!strcmp(hybrid_rows[i].rule, id))
            return true;
    return false;
}

/* A rule without a row is one that a sound package breaks, or one of those
 * that the tests below know. */
Test(lint, each_rule_has_a_damage)
{
    static const char *const elsewhere[] = { "part_compiled_missing",
                                             "compiled_differs" };

    for (int id = 0; id < (int)LINT_RULES; id++) {
        const struct lint_rule *r = lint_rule((enum lint_id)id);
        bool known = has_row(r->id);

        for (size_t i = 0; i < sizeof(elsewhere) / sizeof(elsewhere[0]); i++)
            known = known || !strcmp(r->id, elsewhere[i]);
        cr_expect(known, "no damage for %s", r->id);
        cr_expect(r->wrong[0] && r->advice[0] && r->topic[0]);
        for (int k = 0; k < id; k++)
            cr_expect(strcmp(lint_rule((enum lint_id)k)->id, r->id) != 0);
    }
    cr_expect_geq((int)LINT_RULES, 60);
}

/* ---- what is sound ---- */

static void expect_sound(const char *name, const char *warnings)
{
    struct lint_report none = { 0 }, r = lint(name);
    struct buf text = BUF_INIT;
    char got[1000];

    lint_text(&r, name, &text);
    cr_expect_eq(r.errors, 0, "%s", buf_text(&text));
    news(&r, &none, got, sizeof(got));
    cr_expect_str_eq(got, warnings, "%s", buf_text(&text));
    buf_release(&text);
    lint_release(&r);
}

Test(lint, packages_of_every_family)
{
    struct lint_report r;

    T_PACK_MAKE("llama", .arch = "llama", .like = "tiny", .lut = "6");
    expect_sound("llama", "part_compiled_missing");
    T_PACK_MAKE("q35", .arch = "qwen3_5", .like = "tiny", .lut = "4",
                .chunks = 2);
    expect_sound("q35", "part_compiled_missing runtime_extended state_many "
                        "state_shapes");
    T_PACK_MAKE("g4", .arch = "gemma4", .like = "tiny", .chunks = 2);
    expect_sound("g4", "part_compiled_missing runtime_extended state_shapes");
    /* A local cache that shifts is written before the layers, too. */
    T_PACK_MAKE("base", .arch = "gemma4", .like = "tiny", .ctx = 128,
                .chunks = 2);
    expect_sound("base", "part_compiled_missing runtime_extended state_shapes");
    t_pack_copy("base", "p");
    t_pack_edit("p", "meta.yaml", "sliding, sliding, full",
                "sliding, full, sliding");
    r = lint("p");
    cr_expect(has(&r, LINT_ID_meta_layer_order));
    lint_release(&r);
    T_PACK_MAKE("g3", .arch = "gemma3", .like = "tiny", .ctx = 128);
    expect_sound("g3", "part_compiled_missing state_shapes");
}

/* ---- monolithic packages ---- */

static void whole_function(struct mb *b, struct mil_program *p,
                           const char *name, int64_t T)
{
    struct err err = ERR_INIT;
    int64_t cache[] = { 4, 2, 64, 32 };
    mil_ref ids, state, y, logits;

    mb_begin(b, p, name);
    ids = mb_input(b, "input_ids", MIL_I32, 2, (int64_t[]){ 1, T });
    mb_input(b, "position_ids", MIL_I32, 1, &T);
    mb_input(b, "causal_mask", MIL_F16, 4, (int64_t[]){ 1, 1, T, 64 });
    mb_input(b, "current_pos", MIL_I32, 1, (int64_t[]){ 1 });
    state = mb_state(b, "model_model_kv_cache_0", 4, cache);
    y = MB(b, read_state, .input = state);
    y = MB(b, slice_by_size, .x = y, .begin = MB_INTS(b, 0, 0, 0, 0),
           .size = MB_INTS(b, 1, 1, 1, 32));
    y = MB_RESHAPE(b, y, 1, 1, 32);
    logits = MB(b, add, .x = y, .y = mb_f16(b, 1));
    mb_output(b, "logits1", logits);
    mb_output(b, "logits2",
              MB(b, add, .x = y,
                 .y = MB(b, cast,
                         .x = MB(b, reduce_max, .x = ids,
                                 .axes = MB_INTS(b, 0, 1),
                                 .keep_dims = mb_bool(b, false)),
                         .dtype = mb_string(b, "fp16"))));
    cr_assert_eq(mb_end(b, &err), 0, "%s", err.text);
}

Test(lint, a_monolithic_package)
{
    struct err err = ERR_INIT;
    struct mil_program *p = mil_program_new(&err);
    struct lint_report none = { 0 }, r;
    struct mb b;
    char got[1000];

    whole_function(&b, p, "infer", 1);
    whole_function(&b, p, "prefill", 16);
    t_conv_put("w/meta.yaml",
               "model_info:\n  name: w\n  version: 0.3.5\n"
               "  model_type: monolithic\n  parameters:\n"
               "    context_length: 64\n    batch_size: 16\n"
               "    lut_bits: none\n    model_prefix: qwen\n"
               "    monolithic_model: qwen_monolithic_full.mlmodelc\n"
               "    split_lm_head: 2\n    vocab_size: 64\n"
               "    lm_head_chunk_sizes: [32, 32]\n"
               "    prefill_dynamic_slice: true\n");
    cr_assert_eq(pkg_write(t_conv_path("w/qwen_monolithic_full.mlpackage"), p,
                           NULL, NULL, &err),
                 0, "%s", err.text);
    mil_program_free(p);
    expect_sound("w", "part_compiled_missing tokenizer_missing "
                      "config_missing");
    t_pack_edit("w", "meta.yaml", "context_length: 64", "context_length: 128");
    r = lint("w");
    news(&r, &none, got, sizeof(got));
    cr_expect_str_eq(got, "part_compiled_missing input_type state_context "
                          "tokenizer_missing config_missing");
    lint_release(&r);
}

/* ---- reports ---- */

Test(lint, order_and_sums)
{
    struct lint_report r;
    struct buf text = BUF_INIT, json = BUF_INIT;
    struct js_writer w;
    struct js_doc *d;
    struct err e = ERR_INIT;
    uint64_t n;

    make();
    t_pack_copy("base", "p");
    t_pack_put("p", "stray.txt", "x");
    t_pack_edit("p", "meta.yaml", "    prefill_dynamic_slice: true\n", "");
    t_pack_edit("p", "meta.yaml", "num_layers: 3", "num_layers: 0");
    r = lint("p");
    cr_expect_eq(r.n, r.errors + r.warnings + r.notes);
    cr_expect_geq(r.errors, 1);
    for (size_t i = 1; i < r.n; i++)
        cr_expect(r.v[i - 1].rule->severity >= r.v[i].rule->severity);
    lint_text(&r, "p", &text);
    cr_expect(!strncmp(buf_text(&text), "error meta_range: ", 18));
    cr_expect(strstr(buf_text(&text), "  meta.yaml: num_layers: 0, 1 to 10000 "
                                      "are allowed\n"));
    cr_expect(strstr(buf_text(&text), "note file_stray: "));
    js_w_init(&w, &json);
    lint_json(&r, &w, NULL);
    d = js_parse(json.data, json.len, &e);
    cr_assert_not_null(d, "%s", e.text);
    cr_expect(js_uint(js_get(js_root(d), "errors"), &n) && n == r.errors);
    cr_expect_eq(js_count(js_get(js_root(d), "findings")), r.n);
    js_free(d);
    buf_release(&text);
    buf_release(&json);
    lint_release(&r);
}

Test(lint, what_may_be_a_package)
{
    struct err e = ERR_INIT;
    bool yes;

    t_conv_put("a/config.json", "{}");
    t_conv_put("b/meta.yaml", "");
    t_conv_put("c/x_lm_head.mlmodelc/model.mil", "");
    cr_expect(!lint_is_package(t_conv_path("a"), &yes, &e) && !yes);
    cr_expect(!lint_is_package(t_conv_path("b"), &yes, &e) && yes);
    cr_expect(!lint_is_package(t_conv_path("c"), &yes, &e) && yes);
    cr_expect(!lint_is_package(t_conv_path("c/x_lm_head.mlmodelc"), &yes, &e) &&
              !yes);
    cr_expect(!lint_is_package(t_conv_path("gone"), &yes, &e) && !yes);
}

/* Memory that runs out at any place is an error, not a finding. */
Test(lint, no_memory)
{
    struct lint_report r;
    int failures = 0;

    make();
    for (long n = 0; n < 2000; n += 13) {
        struct err e = ERR_INIT;
        int rc;

        mem_fail_at(n, true);
        rc = lint_package(t_conv_path("base"), &r, &e);
        mem_fail_at(-1, false);
        cr_expect(rc ? e.code == ERR_NOMEM : e.code == ERR_OK, "%ld: %s", n,
                  e.text);
        failures += rc != 0;
        lint_release(&r);
    }
    cr_expect_geq(failures, 20);
}
