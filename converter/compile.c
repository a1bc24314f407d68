/*
 * anemll-compile's work: judge the output, stage, write, read back, rename.
 */
#include "converter/compile.h"

#include <string.h>

#include "converter/base/io.h"
#include "converter/base/mem.h"
#include "converter/output_priv.h"

#define SUFFIX ".mlmodelc"

/* ---- names ---- */

/* The path without slashes at its end. */
static char *trimmed(const char *path, struct err *e)
{
    size_t n = strlen(path);

    while (n > 1 && path[n - 1] == '/')
        n--;
    return mem_strndup(path, n, e);
}

static char *default_output(const char *source, struct err *e)
{
    char *path = trimmed(source, e), *out;
    const char *dot = path ? strrchr(io_basename(path), '.') : NULL;
    size_t n = dot ? (size_t)(dot - path) : 0;

    out =
        path ? mem_printf(e, "%.*s" SUFFIX, (int)(dot ? n : strlen(path)), path)
             : NULL;
    mem_free(path);
    return out;
}

static int check_name(const char *output, struct err *e)
{
    size_t n = strlen(output), k = strlen(SUFFIX);

    if (n > k && !strcmp(output + n - k, SUFFIX) &&
        strlen(io_basename(output)) > k)
        return 0;
    return err_set(e, ERR_USAGE, "the output '%s' does not end in " SUFFIX,
                   output);
}

/* ---- what is there already ---- */

/* The output may not be the source, lie inside it or around it. */
static int check_apart(const char *source, const char *output, struct err *e)
{
    char *parent = output_parent(output, e);
    int rc = parent ? output_check_way("the output", output, parent, e) : -1;

    if (!rc &&
        (io_contains(source, output) == 1 || io_contains(source, parent) == 1 ||
         io_contains(output, source) == 1))
        rc = err_set(e, ERR_USAGE,
                     "the output '%s' and the source '%s' lie in each other",
                     output, source);
    mem_free(parent);
    return rc;
}

static bool written_by_us(const struct mil_program *p)
{
    for (size_t i = 0; i < p->n_build_info; i++)
        if (!strcmp(p->build_info[i].key, COMPILED_WRITER))
            return true;
    return false;
}

static bool model_name(const char *name)
{
    static const char *const names[] = { "coremldata.bin", "model.mil",
                                         "metadata.json", "analytics",
                                         "weights" };

    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++)
        if (!strcmp(names[i], name))
            return true;
    return false;
}

/* What --force would remove: a compiled model of this writer, and nothing
 * that somebody put there since. */
static int check_ours(const char *output, struct err *e)
{
    struct err probe = ERR_INIT;
    struct pkg *k = pkg_open_raw(output, &probe);
    bool ours = k && pkg_is_compiled(k) && written_by_us(pkg_program(k));
    char **names;
    size_t n;
    int rc;

    pkg_close(k);
    if (!k)
        return err_set(e, ERR_USAGE,
                       "'%s' exists and is no compiled model (%s); --force "
                       "replaces compiled models only",
                       output, probe.text);
    if (!ours)
        return err_set(e, ERR_USAGE,
                       "'%s' was not written by this program; --force does "
                       "not replace it",
                       output);
    rc = io_list(output, &names, &n, e);
    for (size_t i = 0; !rc && i < n; i++)
        if (!model_name(names[i]))
            rc = err_set(e, ERR_USAGE,
                         "'%s' holds '%s', which is no part of a compiled "
                         "model; --force does not remove it",
                         output, names[i]);
    io_list_free(names, n);
    return rc;
}

static int check_output(const struct cv_compile *c, const char *output,
                        struct err *e)
{
    if (check_name(output, e) || check_apart(c->source, output, e))
        return -1;
    if (!io_exists(output))
        return 0;
    if (!c->force)
        return err_set(e, ERR_USAGE,
                       "'%s' exists; choose another -o or pass --force to "
                       "replace it",
                       output);
    return check_ours(output, e);
}

/* ---- the work ---- */

static int count(const struct mil_program *p, struct cv_compiled *out,
                 struct err *e)
{
    out->functions = p->n_functions;
    for (size_t i = 0; i < p->n_functions; i++) {
        const struct mil_function *f = p->functions[i];

        out->ops += f->n_ops;
        for (size_t k = 0; k < f->n_ops && !out->unknown; k++)
            if (f->ops[k].code == MIL_OP_INVALID) {
                out->unknown = mem_strdup(mil_op_type(&f->ops[k]), e);
                if (!out->unknown)
                    return -1;
            }
    }
    return 0;
}

/* Figures and agreement come from the disk. */
static int read_back(const struct pkg *source, const char *dir, struct err *e)
{
    struct pkg *k = pkg_open_raw(dir, e);
    int rc = k ? pkg_same(source, k, e) : -1;

    pkg_close(k);
    return rc;
}

static int compile(const struct cv_compile *c, const struct pkg *source,
                   struct cv_compiled *out, struct err *e)
{
    struct compiled_options o = { COMPILED_COPY, c->log, "weights" };
    struct io_stage stage = IO_STAGE_INIT;
    int rc = -1;

    if (io_stage_begin(&stage, out->output, c->force, e)) {
        rc = -1;
    } else if (compiled_fill(stage.dir, source, &o, &out->files, e) ||
               read_back(source, stage.dir, e)) {
        err_in(e, "cannot compile '%s'", c->source);
    } else if (log_cancelled(c->log)) {
        err_set(e, ERR_CANCELLED, "interrupted");
    } else {
        rc = io_stage_commit(&stage, e);
    }
    io_stage_release(&stage);
    return rc;
}

int cv_compile(const struct cv_compile *c, struct cv_compiled *out,
               struct err *e)
{
    struct pkg *source;
    int rc = -1;

    memset(out, 0, sizeof(*out));
    out->output =
        c->output ? trimmed(c->output, e) : default_output(c->source, e);
    if (!out->output || check_output(c, out->output, e))
        return -1;
    source = pkg_open_raw(c->source, e);
    if (source && !count(pkg_program(source), out, e))
        rc = compile(c, source, out, e);
    pkg_close(source);
    return rc;
}

void cv_compiled_release(struct cv_compiled *c)
{
    mem_free(c->output);
    mem_free(c->unknown);
    memset(c, 0, sizeof(*c));
}
