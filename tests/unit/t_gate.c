/*
 * Packages of synthetic checkpoints and their scratch copies.
 */
#include "t_gate.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "converter/base/io.h"
#include "converter/base/num.h"
#include "converter/meta.h"
#include "converter/synth.h"
#include "safetensors/st.h"
#include "schema/package.h"
#include "t_dir.h"

static struct err err;

static void convert(struct t_gate *t, const struct t_gate_recipe *r)
{
    struct cv_options o;
    struct cv_job j;

    cv_options_init(&o);
    o.model = t->ck;
    o.output = t->honest;
    o.emit = CV_EMIT_PACKAGE; /* t_gate_edit changes one form */
    o.ctx = r->ctx ? r->ctx : 64;
    o.batch = r->batch ? r->batch : 16;
    o.chunks = r->chunks ? r->chunks : 1;
    cr_assert_eq(cv_lut_parse("lut", r->lut ? r->lut : "none", &o.lut_ffn,
                              &err),
                 0);
    o.lut_head = o.lut_ffn;
    cr_assert_eq(cv_job_open(&j, &o, false, &err), 0, "%s", err.text);
    cr_assert_eq(cv_convert(&j, NULL, &err), 0, "%s", err.text);
    cv_job_close(&j);
}

void t_gate_make(struct t_gate *t, const struct t_gate_recipe *r)
{
    memset(t, 0, sizeof(*t));
    snprintf(t->root, sizeof(t->root), "%s", t_dir_new());
    snprintf(t->ck, sizeof(t->ck), "%s/ck", t->root);
    snprintf(t->honest, sizeof(t->honest), "%s/honest", t->root);
    snprintf(t->copy, sizeof(t->copy), "%s/copy", t->root);
    cr_assert_eq(synth_checkpoint(r->arch, r->like, 1, t->ck, NULL, &err), 0,
                 "%s", err.text);
    if (r->bend)
        r->bend(t->ck);
    convert(t, r);
    cr_assert_eq(ckpt_open(&t->ckpt, t->ck, 0, &err), 0, "%s", err.text);
}

void t_gate_scale(const char *ck, const char *tensor, float by)
{
    const char *path = t_path(ck, "model.safetensors");
    struct st *st = st_open(path, &err);
    const struct st_tensor *t = st_find(st, tensor);
    size_t bytes = (size_t)(t->end - t->begin);
    unsigned char head[8], *x = mem_alloc(bytes, 1, &err);
    FILE *f = fopen(path, "r+b");
    long at;

    cr_assert(t->dtype == ST_BF16 && x && f);
    cr_assert_eq(fread(head, 1, 8, f), 8);
    at = (long)(8 + load_le64(head) + t->begin);
    cr_assert_eq(fseek(f, at, SEEK_SET), 0);
    cr_assert_eq(fread(x, 1, bytes, f), bytes);
    for (size_t i = 0; i < bytes; i += 2)
        store_le16(x + i, f32_to_bf16(bf16_to_f32(load_le16(x + i)) * by));
    cr_assert_eq(fseek(f, at, SEEK_SET), 0);
    cr_assert_eq(fwrite(x, 1, bytes, f), bytes);
    cr_assert_eq(fclose(f), 0);
    st_close(st);
    mem_free(x);
}

void t_gate_drop(struct t_gate *t)
{
    ckpt_close(&t->ckpt);
    t_dir_drop(t->root);
}

void t_gate_copy(struct t_gate *t)
{
    char **names, from[1024], to[1024];
    size_t n;

    cr_assert_eq(io_remove_tree(t->copy, &err), 0, "%s", err.text);
    cr_assert_eq(io_mkdir(t->copy, &err), 0, "%s", err.text);
    cr_assert_eq(io_list(t->honest, &names, &n, &err), 0, "%s", err.text);
    for (size_t i = 0; i < n; i++) {
        snprintf(from, sizeof(from), "%s/%s", t->honest, names[i]);
        snprintf(to, sizeof(to), "%s/%s", t->copy, names[i]);
        cr_assert_eq(symlink(from, to), 0);
    }
    io_list_free(names, n);
}

const char *t_gate_part(const struct t_gate *t, const char *dir,
                        enum cv_kind kind, int chunk)
{
    static char out[1024];
    struct meta m;
    char *path;

    cr_assert_eq(meta_read(t->honest, &m, &err), 0, "%s", err.text);
    path = meta_part_path(dir, &m, kind, chunk, META_PACKAGE, &err);
    cr_assert(path, "%s", err.text);
    snprintf(out, sizeof(out), "%s", path);
    mem_free(path);
    return out;
}

void t_gate_edit(struct t_gate *t, enum cv_kind kind, int chunk,
                 void (*edit)(struct mil_program *p, const void *arg),
                 const void *arg)
{
    struct pkg *pkg = pkg_open(t_gate_part(t, t->honest, kind, chunk), &err);
    const char *to = t_gate_part(t, t->copy, kind, chunk);

    cr_assert(pkg, "%s", err.text);
    /* The program is the reader's; it is read by nobody else. */
    edit((struct mil_program *)(uintptr_t)pkg_program(pkg), arg);
    cr_assert_eq(io_remove_tree(to, &err), 0, "%s", err.text);
    cr_assert_eq(pkg_write(to, pkg_program(pkg), NULL, NULL, &err), 0, "%s",
                 err.text);
    pkg_close(pkg);
}

static void nothing(struct mil_program *p, const void *arg)
{
    (void)p;
    (void)arg;
}

void t_gate_own(struct t_gate *t, enum cv_kind kind, int chunk)
{
    t_gate_edit(t, kind, chunk, nothing, NULL);
}

enum gate_verdict t_gate_run(const struct t_gate *t, const char *dir,
                             enum run_profile profile, struct gate_result *r)
{
    struct gate_options o = { .package = dir,
                              .ckpt = &t->ckpt,
                              .profile = profile,
                              .tokens = t->tokens[0] ? t->tokens : NULL };

    cr_assert_eq(gate_run(&o, r, &err), 0, "%s", err.text);
    return r->verdict;
}

const struct gate_check *t_gate_check(const struct gate_result *r,
                                      const char *name)
{
    for (int i = 0; i < r->n_checks; i++)
        if (!strcmp(r->checks[i].name, name))
            return &r->checks[i];
    return NULL;
}
