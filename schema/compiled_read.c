/*
 * Compiled models to programs: the text, then what the description alone
 * knows. Both are hostile.
 */
#include <string.h>

#include "mil/text.h"
#include "schema/compiled_priv.h"
#include "schema/coremldata.h"
#include "schema/older_priv.h"

#define TEXT_MAX_BYTES ((uint64_t)1 << 30)
#define DATA_MAX_BYTES ((uint64_t)256 << 20)

static int read_text(struct pkg *k, struct err *e)
{
    struct text_parse_options o = { weight_files_get, &k->weights, true };
    struct buf text = BUF_INIT;

    if (!io_read_file(k->model_path, TEXT_MAX_BYTES, &text, e)) {
        k->model_bytes = text.len;
        k->program = text_parse(buf_text(&text), text.len, &o, e);
        if (!k->program)
            err_in(e, "'" COMPILED_TEXT "'");
    }
    buf_release(&text);
    return k->program ? 0 : -1;
}

static int describe(struct pkg *k, const struct coremldata *d, struct err *e)
{
    /* The text says only whether it is 9 or less. */
    if ((d->spec_version < 9) != (k->program->spec_version < 9))
        return err_set(e, ERR_INPUT,
                       "specification version %d, " COMPILED_TEXT
                       " is of version %d",
                       d->spec_version, k->program->spec_version);
    k->program->spec_version = d->spec_version;
    if (d->functions != k->program->n_functions)
        return err_set(e, ERR_INPUT, "%zu functions, " COMPILED_TEXT " has %zu",
                       d->functions, k->program->n_functions);
    return codec_describe(k->program, d->description, d->description_bytes,
                          &k->described, e);
}

static int read_all(struct pkg *k, const struct buf *bytes, struct err *e)
{
    struct coremldata d;

    /* The kind first: networks and pipelines have no text. */
    if (coremldata_read(bytes->data, bytes->len, &d, e))
        return err_in(e, "'" COREMLDATA_NAME "'");
    if (read_text(k, e))
        return -1;
    return describe(k, &d, e) ? err_in(e, "'" COREMLDATA_NAME "'") : 0;
}

int compiled_read(struct pkg *k, bool raw, struct err *e)
{
    char *path = io_join(k->path, COREMLDATA_NAME, e);
    struct buf bytes = BUF_INIT;
    int rc = -1;

    k->model_path = io_join(k->path, COMPILED_TEXT, e);
    k->weights.dir = mem_strdup(k->path, e);
    k->weights.whole = true;
    if (path && k->model_path && k->weights.dir &&
        !io_read_file(path, DATA_MAX_BYTES, &bytes, e))
        rc = read_all(k, &bytes, e);
    if (!rc && !raw)
        rc = older_raise(k->program, e);
    buf_release(&bytes);
    mem_free(path);
    return rc;
}
