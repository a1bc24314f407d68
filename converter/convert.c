/*
 * The pipeline: judge the output, stage, parts one after the other, meta.yaml,
 * assets, one rename.
 */
#include <inttypes.h>
#include <string.h>

#include "converter/assets.h"
#include "converter/base/io.h"
#include "converter/base/mem.h"
#include "converter/base/num.h"
#include "converter/budget_priv.h"
#include "converter/cache.h"
#include "converter/converter.h"
#include "converter/emit_priv.h"
#include "converter/importance.h"
#include "converter/meta.h"
#include "converter/output_priv.h"
#include "converter/program_priv.h"
#include "converter/report.h"
#include "schema/package.h"

/* ---- before any work ---- */

/* An input file may lie under any of its names in the folder that goes. */
static int check_inputs(const struct cv_job *j, struct err *e)
{
    const char *more[] = { j->opt.tokens, j->opt.calib, j->opt.importance,
                           j->opt.recipe };
    char **names = NULL;
    size_t n;
    int rc = io_list(j->opt.model, &names, &n, e);

    for (size_t i = 0; !rc && i < n; i++) {
        char *path = io_join(j->opt.model, names[i], e);

        if (!path)
            rc = -1;
        else if (io_contains(j->output, path) == 1)
            rc = err_set(e, ERR_USAGE,
                         "the output '%s' holds the model's file '%s'",
                         j->output, path);
        mem_free(path);
    }
    io_list_free(names, n);
    for (size_t i = 0; !rc && i < sizeof(more) / sizeof(more[0]); i++)
        if (more[i] && io_contains(j->output, more[i]) == 1)
            rc = err_set(e, ERR_USAGE,
                         "the output '%s' holds the input file '%s'", j->output,
                         more[i]);
    return rc;
}

/* The output may not be the model, lie inside it, or hold it or one of its
 * files: whatever the names, by device and inode. */
static int check_apart(const struct cv_job *j, const char *parent,
                       struct err *e)
{
    const char *model = j->opt.model;

    if (io_contains(j->output, model) == 1)
        return err_set(e, ERR_USAGE,
                       "the output '%s' is or holds the model folder '%s'",
                       j->output, model);
    if (io_contains(model, j->output) == 1 || io_contains(model, parent) == 1)
        return err_set(e, ERR_USAGE,
                       "the output '%s' lies inside the model folder '%s'",
                       j->output, model);
    for (size_t i = 0; i < st_shard_count(j->ckpt.st); i++)
        if (io_contains(j->output, st_shard_path(j->ckpt.st, (int)i)) == 1)
            return err_set(e, ERR_USAGE,
                           "the output '%s' holds the model's file '%s'",
                           j->output, st_shard_path(j->ckpt.st, (int)i));
    return check_inputs(j, e);
}

static bool package_name(const char *name)
{
    static const char *const ends[] = { ".mlpackage", ".mlmodelc" };
    size_t n = strlen(name);

    for (size_t i = 0; i < sizeof(ends) / sizeof(ends[0]); i++)
        if (n > strlen(ends[i]) && !strcmp(name + n - strlen(ends[i]), ends[i]))
            return true;
    return !strcmp(name, "meta.yaml") || !strcmp(name, "gate.json") ||
           !strcmp(name, REPORT_NAME) || assets_name(name);
}

/* What --force would remove: a package that this program wrote, and nothing
 * that somebody put there since. */
static int check_ours(const struct cv_job *j, struct err *e)
{
    struct meta m;
    struct err probe = ERR_INIT;
    char **names;
    size_t n;
    int rc;

    if (!io_is_dir(j->output))
        return err_set(e, ERR_USAGE,
                       "'%s' exists and is no folder; --force replaces "
                       "packages only",
                       j->output);
    if (meta_read(j->output, &m, &probe))
        return err_set(e, ERR_USAGE,
                       "'%s' exists and is no package (%s); --force replaces "
                       "packages only",
                       j->output, probe.text);
    if (!m.ours)
        return err_set(e, ERR_USAGE,
                       "'%s' is a package of another program (its meta.yaml "
                       "does not end with our line); --force does not replace "
                       "it",
                       j->output);
    rc = io_list(j->output, &names, &n, e);
    for (size_t i = 0; !rc && i < n; i++)
        if (!package_name(names[i]))
            rc = err_set(e, ERR_USAGE,
                         "'%s' holds '%s', which is no part of a package; "
                         "--force does not remove it",
                         j->output, names[i]);
    io_list_free(names, n);
    return rc;
}

static int check_output(const struct cv_job *j, struct err *e)
{
    if (!io_exists(j->output))
        return 0;
    if (!j->opt.force)
        return err_set(e, ERR_USAGE,
                       "'%s' exists; choose another -o or pass --force to "
                       "replace it",
                       j->output);
    return check_ours(j, e);
}

static int check_space(const struct cv_job *j, const char *parent,
                       uint64_t need, struct err *e)
{
    char a[NUM_TEXT_MAX], b[NUM_TEXT_MAX];
    uint64_t have;

    if (io_free_bytes(parent, &have, e))
        return -1;
    if (have >= need)
        return 0;
    num_bytes_text(a, need);
    num_bytes_text(b, have);
    return err_set(e, ERR_IO,
                   "the package needs about %s (%" PRIu64 " bytes) and the "
                   "disk of '%s' has %s (%" PRIu64 " bytes) free",
                   a, need, j->output, b, have);
}

/* gate.json, and what file systems take for folders and ends of blocks. */
#define SPACE_SLACK 1000000

static int preflight(const struct cv_job *j, struct err *e)
{
    char *parent = output_parent(j->output, e);
    int rc = -1;

    if (parent && !output_check_way("the output", j->output, parent, e) &&
        !check_apart(j, parent, e) && !check_output(j, e) &&
        !check_space(j, parent, j->disk_bytes + SPACE_SLACK, e))
        rc = 0;
    mem_free(parent);
    return rc;
}

/* ---- the cache ---- */

/* The model is only read, and the output comes and goes as a whole. */
static int open_cache(struct cv_job *j, struct err *e)
{
    const char *dir = j->opt.cache;
    char *near, *parent;
    uint64_t reserve = 0;

    if (!dir)
        return 0;
    if (output_check_outside("--cache", dir, "the model folder", j->opt.model,
                             e) ||
        output_check_outside("--cache", dir, "the output", j->output, e))
        return -1;
    near = output_parent(dir, e);
    parent = output_parent(j->output, e);
    if (near && parent) {
        if (io_same_disk(near, parent))
            reserve = j->disk_bytes + SPACE_SLACK;
        j->cache = cache_open(dir, reserve, j->opt.log, e);
    }
    mem_free(near);
    mem_free(parent);
    return j->cache ? 0 : -1;
}

static void close_cache(struct cv_job *j)
{
    struct cache_counts n;
    char bytes[NUM_TEXT_MAX];

    if (!j->cache)
        return;
    cache_counted(j->cache, &n);
    num_bytes_text(bytes, n.found_bytes);
    log_debug(j->opt.log,
              "cache '%s': %" PRIu64 " matrices found (%s), %" PRIu64
              " added, %" PRIu64 " refused",
              j->opt.cache, n.found, bytes, n.added, n.refused);
    cache_close(j->cache);
    j->cache = NULL;
}

/* ---- the work ---- */

static int write_part(struct cv_job *j, struct cv_part *part, const char *dir,
                      struct report *report, uint64_t base, uint64_t total,
                      struct err *e)
{
    struct pkg_options po = { .log = j->opt.log,
                              .stage = "convert",
                              .progress_base = base,
                              .progress_total = total,
                              .threads = par_width(j->opt.par) > 1 };
    struct cv_program prog;
    int rc;

    if (log_cancelled(j->opt.log))
        return err_set(e, ERR_CANCELLED, "interrupted");
    if (cv_build_part(j, part, &prog, e))
        return -1;
    rc = emit_part(j, part, dir, &prog, &po, report, e);
    if (!rc)
        cv_program_error(&prog, part);
    cv_program_release(&prog);
    return rc;
}

/* Some file systems know no hard links: there weights lie in both forms, or,
 * of a part at a time, in the form that is left as well as in its source. */
static int check_copies(struct cv_job *j, const char *dir, struct err *e)
{
    uint64_t all = 0, most = 0, one;

    if (!(j->opt.emit & CV_EMIT_COMPILED) || io_takes_links(dir))
        return 0;
    for (size_t i = 0; i < j->n_parts; i++) {
        one = j->parts[i].weight_bytes;
        all += one;
        most = one > most ? one : most;
    }
    if (j->opt.emit & CV_EMIT_PACKAGE)
        j->disk_bytes += all;
    if (check_space(j, dir,
                    j->disk_bytes + SPACE_SLACK +
                        (j->opt.emit & CV_EMIT_PACKAGE ? 0 : most),
                    e))
        return err_in(e, "no hard links here, weights are copied");
    return 0;
}

static void tell_copies(const struct cv_job *j)
{
    char text[NUM_TEXT_MAX];
    uint64_t copied = 0;

    for (size_t i = 0; i < j->n_parts; i++)
        copied += j->parts[i].copied_weights;
    num_bytes_text(text, copied);
    if (copied)
        log_warn(j->opt.log,
                 "the disk of '%s' takes no hard links: the weights are stored "
                 "in both forms (%s more)",
                 j->output, text);
}

static int write_parts(struct cv_job *j, const char *dir, struct report *report,
                       struct err *e)
{
    uint64_t base = 0, total = 0;

    for (size_t i = 0; i < j->n_parts; i++)
        total += j->parts[i].weight_bytes;
    for (size_t i = 0; i < j->n_parts; i++) {
        struct cv_part *p = &j->parts[i];

        if (write_part(j, p, dir, report, base, total, e))
            return -1;
        base += p->weight_bytes;
        log_debug(j->opt.log, "%s: %" PRIu64 " bytes of weights", p->name,
                  p->written_weights);
    }
    tell_copies(j);
    return 0;
}

static int write_meta(const struct cv_job *j, const struct assets *a,
                      const char *dir, struct err *e)
{
    struct buf text = BUF_INIT;
    char *path = io_join(dir, "meta.yaml", e);
    int rc = -1;

    if (path && !meta_text(j, a, &text, e))
        rc = io_write_file(path, text.data, text.len, e);
    mem_free(path);
    buf_release(&text);
    return rc;
}

static int write_all(struct cv_job *j, const struct assets *a, const char *dir,
                     struct err *e)
{
    struct report *report = report_new(j, dir, e);
    int rc = -1;

    if (report && !write_parts(j, dir, report, e) &&
        !report_finish(report, e) && !write_meta(j, a, dir, e) &&
        !assets_write(a, dir, e))
        rc = st_unchanged(j->ckpt.st, e);
    report_free(report);
    return rc;
}

/* Interrupted, or the model is not what was read any more? */
static int still_valid(const struct cv_job *j, struct err *e)
{
    if (log_cancelled(j->opt.log))
        return err_set(e, ERR_CANCELLED, "interrupted");
    return st_unchanged(j->ckpt.st, e);
}

int cv_convert(struct cv_job *j, const struct cv_verify *v, struct err *e)
{
    struct io_stage stage = IO_STAGE_INIT;
    struct assets *a = NULL;
    bool keep = true;
    int rc = -1;

    if (preflight(j, e) || open_cache(j, e) ||
        (j->importance && importance_scan(j->importance, j->opt.log, e)) ||
        cv_choose_scale(j, e) || !(a = assets_open(&j->ckpt, &j->notes, e)) ||
        buf_ok(&j->notes, e) ||
        (j->opt.budget > 0 && (cv_choose_widths(j, e) || preflight(j, e))) ||
        io_stage_begin(&stage, j->output, j->opt.force, e) ||
        check_copies(j, stage.dir, e) || write_all(j, a, stage.dir, e))
        goto out;
    close_cache(j);
    assets_close(a); /* the gate needs the memory */
    a = NULL;
    if (v && v->run(v->cookie, stage.dir, &keep, e))
        goto out;
    if (still_valid(j, e))
        goto out;
    if (keep)
        log_debug(j->opt.log, "writing through to the disk");
    rc = keep ? io_stage_commit(&stage, e) : 0;
out:
    close_cache(j);
    io_stage_release(&stage);
    assets_close(a);
    return rc;
}
