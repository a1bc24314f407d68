/*
 * Packages to damage.
 */
#include "t_pack.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "converter/base/io.h"
#include "schema/codec.h"
#include "schema/package.h"
#include "t_conv.h"

static struct err err;

void t_pack_make(const char *name, const struct t_pack_recipe *r)
{
    char model[200];
    struct cv_options o;

    snprintf(model, sizeof(model), "ck-%s-%s", r->arch, r->like);
    if (!io_exists(t_conv_path(model)))
        t_conv_synth(r->arch, r->like, model);
    o = t_conv_options(model);
    o.ctx = r->ctx ? r->ctx : 64;
    o.batch = r->batch ? r->batch : 16;
    o.chunks = r->chunks ? r->chunks : 1;
    o.prefix = r->prefix;
    o.head_parts = r->head_parts;
    cr_assert_eq(cv_lut_parse("lut", r->lut ? r->lut : "none", &o.lut_ffn,
                              &err),
                 0, "%s", err.text);
    o.lut_head = o.lut_ffn;
    /* An edited program would differ from its compiled form. */
    o.emit = r->both ? CV_EMIT_BOTH : CV_EMIT_PACKAGE;
    t_conv_run(&o, name);
}

void t_pack_copy(const char *from, const char *to)
{
    char command[1400];

    cr_assert_eq(io_remove_tree(t_conv_path(to), &err), 0, "%s", err.text);
    snprintf(command, sizeof(command), "cp -rl '%s' '%s'", t_conv_path(from),
             t_conv_path(to));
    cr_assert_eq(system(command), 0);
}

static const char *path_of(const char *pack, const char *file)
{
    char name[500];

    snprintf(name, sizeof(name), "%.150s/%.300s", pack, file);
    return t_conv_path(name);
}

const char *t_pack_text(const char *pack, const char *file)
{
    static char ring[4][65536];
    static unsigned at;
    char *text = t_conv_text(path_of(pack, file), NULL), *out;

    out = ring[at++ % 4];
    cr_assert_lt(strlen(text), sizeof(ring[0]), "%s", file);
    memcpy(out, text, strlen(text) + 1);
    mem_free(text);
    return out;
}

void t_pack_put(const char *pack, const char *file, const char *text)
{
    unlink(path_of(pack, file));
    t_conv_put(path_of(pack, file), text);
}

void t_pack_edit(const char *pack, const char *file, const char *from,
                 const char *to)
{
    const char *text = t_pack_text(pack, file), *p = strstr(text, from);
    struct buf out = BUF_INIT;

    cr_assert_not_null(p, "%s lacks '%s'", file, from);
    buf_add(&out, text, (size_t)(p - text));
    buf_puts(&out, to);
    buf_puts(&out, p + strlen(from));
    t_pack_put(pack, file, buf_text(&out));
    buf_release(&out);
}

void t_pack_own(const char *pack, const char *file)
{
    char own[700];

    snprintf(own, sizeof(own), "%s.own", path_of(pack, file));
    cr_assert_eq(io_copy_file(path_of(pack, file), own, &err), 0, "%s",
                 err.text);
    cr_assert_eq(rename(own, path_of(pack, file)), 0);
}

void t_pack_remove(const char *pack, const char *file)
{
    cr_assert(io_exists(path_of(pack, file)), "%s", file);
    cr_assert_eq(io_remove_tree(path_of(pack, file), &err), 0, "%s", err.text);
}

void t_pack_rename(const char *pack, const char *from, const char *to)
{
    cr_assert_eq(rename(path_of(pack, from), path_of(pack, to)), 0, "%s", from);
}

/* ---- programs ---- */

static void write_program(const struct mil_program *p, const char *model,
                          const char *weights)
{
    struct blob_writer *w = blob_writer_new(weights, NULL, &err);
    struct blob_totals totals;
    struct buf out = BUF_INIT;

    cr_assert_not_null(w, "%s", err.text);
    cr_assert_eq(codec_encode(p, w, &out, &err), 0, "%s", err.text);
    cr_assert_eq(blob_writer_finish(w, &totals, &err), 0, "%s", err.text);
    blob_writer_free(w);
    cr_assert_eq(io_write_file(model, out.data, out.len, &err), 0, "%s",
                 err.text);
    buf_release(&out);
}

void t_pack_program(const char *pack, const char *model,
                    void (*change)(struct mil_program *p, const void *arg),
                    const void *arg)
{
    struct pkg *p = pkg_open(path_of(pack, model), &err);
    char data[600], weights[700], to[700], fresh[700];

    cr_assert_not_null(p, "%s", err.text);
    /* The program is the reader's; it is read by nobody else. */
    change((struct mil_program *)(uintptr_t)pkg_program(p), arg);
    snprintf(data, sizeof(data), "%s/Data/com.apple.CoreML",
             path_of(pack, model));
    snprintf(weights, sizeof(weights), "%s/weights/weight.bin", data);
    snprintf(fresh, sizeof(fresh), "%s/weights/fresh", data);
    snprintf(to, sizeof(to), "%s/model.mlmodel", data);
    unlink(to); /* the weights are read from the open file */
    write_program(pkg_program(p), to, fresh);
    pkg_close(p);
    if (io_exists(fresh)) /* a program without blobs has no weight file */
        cr_assert_eq(rename(fresh, weights), 0);
}
