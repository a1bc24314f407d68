/*
 * Forms of a part. The package is written in any case: the compiled form is a
 * transliteration of it, and shares its weights by a hard link.
 */
#include "converter/emit_priv.h"

#include "converter/base/io.h"
#include "converter/base/mem.h"
#include "converter/program_priv.h"
#include "schema/compiled.h"

static int same_as(const struct pkg *package, const char *compiled,
                   struct err *e)
{
    struct pkg *k = pkg_open_raw(compiled, e);
    int rc = k ? pkg_same(package, k, e) : -1;

    pkg_close(k);
    return rc;
}

static int emit_compiled(const struct cv_job *j, struct cv_part *part,
                         const char *dir, const struct pkg *package,
                         struct err *e)
{
    const struct compiled_options o = { COMPILED_LINK, j->opt.log, "weights" };
    char *path = mem_printf(e, "%s/%s.mlmodelc", dir, part->name);
    struct compiled_written w;
    int rc = -1;

    if (path && !compiled_write(path, package, &o, &w, e)) {
        if (j->opt.emit & CV_EMIT_PACKAGE)
            part->copied_weights = w.weights_bytes - w.linked_bytes;
        part->written_compiled =
            w.text_bytes + w.other_bytes + part->copied_weights;
        rc = same_as(package, path, e);
    }
    mem_free(path);
    return rc;
}

static int emit_forms(const struct cv_job *j, struct cv_part *part,
                      const char *dir, const char *package,
                      const struct cv_program *planned, struct report *report,
                      struct err *e)
{
    struct pkg *k = pkg_open_raw(package, e);
    int rc = -1;

    if (k && !cv_program_check(pkg_program(k), part, planned, e) &&
        !report_part(report, part, k, planned, e))
        rc = j->opt.emit & CV_EMIT_COMPILED ? emit_compiled(j, part, dir, k, e)
                                            : 0;
    pkg_close(k);
    if (!rc && !(j->opt.emit & CV_EMIT_PACKAGE))
        rc = io_remove_tree(package, e);
    return rc ? err_in(e, "part '%s'", part->name) : 0;
}

int emit_part(const struct cv_job *j, struct cv_part *part, const char *dir,
              const struct cv_program *p, const struct pkg_options *po,
              struct report *report, struct err *e)
{
    char *path = mem_printf(e, "%s/%s.mlpackage", dir, part->name);
    struct pkg_written w;
    int rc = -1;

    if (path && !pkg_write(path, p->program, po, &w, e)) {
        part->written_weights = w.weights_bytes;
        part->written_model = j->opt.emit & CV_EMIT_PACKAGE ? w.model_bytes : 0;
        part->written_compiled = part->copied_weights = 0;
        rc = emit_forms(j, part, dir, path, p, report, e);
    }
    mem_free(path);
    return rc;
}
