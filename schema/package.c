/*
 * `.mlpackage` directories, written and read; bare `.mlmodel` files, read.
 *
 * The writer makes the directory where it is told to: staging and the rename
 * that makes a result visible belong to the caller; what it could not finish
 * it removes. The reader decodes the program at once and leaves the weights
 * in their files, which stay open as long as the package.
 */
#include "schema/package.h"

#include <inttypes.h>
#include <string.h>

#include "converter/base/hash.h"
#include "converter/base/io.h"
#include "schema/blob.h"
#include "schema/codec.h"
#include "schema/compiled_priv.h"
#include "schema/coremldata.h"
#include "schema/manifest_priv.h"

#define SUFFIX ".mlpackage"
#define WEIGHT_NAME "weight.bin"
#define MODEL_MAX_BYTES ((uint64_t)256 << 20)

static bool has_suffix(const char *s, const char *suffix)
{
    size_t n = strlen(s), k = strlen(suffix);

    return n > k && strcmp(s + n - k, suffix) == 0;
}

/* ---- writing ---- */

struct places {
    char *data, *author, *weights, *weight_file, *model, *manifest;
};

static void places_release(struct places *p)
{
    mem_free(p->data);
    mem_free(p->author);
    mem_free(p->weights);
    mem_free(p->weight_file);
    mem_free(p->model);
    mem_free(p->manifest);
}

static int make_places(struct places *p, const char *path, struct err *e)
{
    memset(p, 0, sizeof(*p));
    if (!(p->manifest = io_join(path, MANIFEST_NAME, e)) ||
        !(p->data = io_join(path, MANIFEST_DATA, e)) ||
        !(p->author = io_join(p->data, MANIFEST_AUTHOR, e)) ||
        !(p->model = io_join(p->author, MANIFEST_MODEL, e)) ||
        !(p->weights = io_join(p->author, MANIFEST_WEIGHTS, e)) ||
        !(p->weight_file = io_join(p->weights, WEIGHT_NAME, e)))
        return -1;
    if (io_mkdir(path, e) || io_mkdir(p->data, e) || io_mkdir(p->author, e))
        return -1;
    return io_mkdir(p->weights, e);
}

/* The identifiers are looked up by readers and mean nothing else: they come
 * from the contents so that equal packages have equal bytes. */
static int write_manifest(const struct places *at, const struct buf *model,
                          const struct blob_totals *t, struct err *e)
{
    struct buf text = BUF_INIT;
    char id[HASH_UUID_MAX];
    int rc = -1;

    hash_uuid(id, hash_bytes(model->data, model->len));
    manifest_print(&text, id, t->identity);
    if (buf_ok(&text, e) == 0)
        rc = io_write_file(at->manifest, text.data, text.len, e);
    buf_release(&text);
    return rc;
}

static int file_size(const char *path, uint64_t *out, struct err *e)
{
    struct io_file f = IO_FILE_INIT;

    if (io_open_input(&f, path, e))
        return -1;
    *out = f.size;
    io_close(&f);
    return 0;
}

/* Figures come from the disk, not from what was meant. */
static int read_back(const struct places *at, const struct blob_totals *t,
                     struct pkg_written *out, struct err *e)
{
    struct blob_reader r = BLOB_READER_INIT;

    memset(out, 0, sizeof(*out));
    out->shared = t->shared;
    if (file_size(at->model, &out->model_bytes, e))
        return -1;
    if (!t->blobs)
        return 0;
    if (blob_open(&r, at->weight_file, e))
        return -1;
    out->weights_bytes = r.file.size;
    out->blobs = r.count;
    blob_close(&r);
    return 0;
}

static int write_all(const struct places *at, const struct mil_program *p,
                     const struct pkg_options *o, struct pkg_written *out,
                     struct err *e)
{
    struct blob_options bo = { 0 };
    struct blob_totals totals;
    struct blob_writer *w;
    struct buf model = BUF_INIT;
    int rc = -1;

    if (o) {
        bo.log = o->log;
        bo.stage = o->stage;
        bo.progress_base = o->progress_base;
        bo.progress_total = o->progress_total;
        bo.threads = o->threads;
    }
    w = blob_writer_new(at->weight_file, &bo, e);
    if (!w)
        return -1;
    if (codec_encode(p, w, &model, e) || blob_writer_finish(w, &totals, e) ||
        io_write_file(at->model, model.data, model.len, e) ||
        write_manifest(at, &model, &totals, e))
        goto out;
    rc = out ? read_back(at, &totals, out, e) : 0;
out:
    buf_release(&model);
    blob_writer_free(w);
    return rc;
}

int pkg_write(const char *path, const struct mil_program *p,
              const struct pkg_options *o, struct pkg_written *out,
              struct err *e)
{
    struct places at;
    struct err ignored = ERR_INIT;
    int rc = -1;

    if (!has_suffix(path, SUFFIX))
        return err_set(e, ERR_INPUT,
                       "cannot write '%s': the name must end in " SUFFIX, path);
    if (io_exists(path))
        return err_set(e, ERR_INPUT, "cannot write '%s': it exists", path);
    if (mil_validate(p, e))
        return err_in(e, "cannot write '%s'", path);
    if (make_places(&at, path, e) || write_all(&at, p, o, out, e)) {
        err_in(e, "cannot write '%s'", path);
        if (io_remove_tree(path, &ignored))
            err_in(e, "%s", ignored.text);
    } else {
        rc = 0;
    }
    places_release(&at);
    return rc;
}

/* ---- reading ---- */

/* A bare model's weights lie in `weights` beside it. */
static int find_bare(struct pkg *k, struct err *e)
{
    const char *base = io_basename(k->path);
    char *dir = base == k->path
                    ? mem_strdup(".", e)
                    : mem_strndup(k->path, (size_t)(base - k->path), e);

    k->model_path = mem_strdup(k->path, e);
    if (dir)
        k->weights.dir = io_join(dir, MANIFEST_WEIGHTS, e);
    mem_free(dir);
    if (!k->model_path || !k->weights.dir)
        return -1;
    if (!io_is_dir(k->weights.dir)) {
        mem_free(k->weights.dir);
        k->weights.dir = NULL;
    }
    return 0;
}

static int find_model(struct pkg *k, struct err *e)
{
    struct manifest m = MANIFEST_INIT;
    char *manifest;
    bool there;

    if (!io_is_dir(k->path))
        return find_bare(k, e);
    manifest = io_join(k->path, MANIFEST_NAME, e);
    if (!manifest)
        return -1;
    there = io_exists(manifest);
    mem_free(manifest);
    if (!there)
        return err_set(e, ERR_INPUT,
                       "it is a directory without " MANIFEST_NAME
                       ", no " SUFFIX);
    if (manifest_read(&m, k->path, e))
        return -1;
    k->model_path = m.model;
    k->weights.dir = m.weights;
    return 0;
}

static int read_model(struct pkg *k, bool raw, struct err *e)
{
    struct buf model = BUF_INIT;
    struct codec_options o = { { weight_files_get, &k->weights }, raw };
    int rc = -1;

    if (io_read_file(k->model_path, MODEL_MAX_BYTES, &model, e) == 0) {
        k->model_bytes = model.len;
        k->program =
            codec_decode(buf_text(&model), model.len, &o, &k->described, e);
        rc = k->program ? 0 : -1;
    }
    buf_release(&model);
    return rc;
}

/* By what it holds, or else by its name, so that a broken one is named right.
 */
static int find_kind(struct pkg *k, struct err *e)
{
    char *data = io_join(k->path, COREMLDATA_NAME, e);

    if (!data)
        return -1;
    k->compiled = has_suffix(k->path, COMPILED_SUFFIX) || io_exists(data);
    mem_free(data);
    return 0;
}

static struct pkg *open_package(const char *path, bool raw, struct err *e)
{
    struct pkg *k = mem_zalloc(1, sizeof(*k), e);
    size_t n = strlen(path);

    if (!k)
        return NULL;
    while (n > 1 && path[n - 1] == '/')
        n--;
    k->path = mem_strndup(path, n, e);
    if (!k->path || find_kind(k, e) ||
        (k->compiled ? compiled_read(k, raw, e)
                     : find_model(k, e) || read_model(k, raw, e))) {
        err_in(e, "cannot read '%s'", path);
        pkg_close(k);
        return NULL;
    }
    return k;
}

struct pkg *pkg_open(const char *path, struct err *e)
{
    return open_package(path, false, e);
}

struct pkg *pkg_open_raw(const char *path, struct err *e)
{
    return open_package(path, true, e);
}

const struct mil_program *pkg_program(const struct pkg *p)
{
    return p->program;
}

const char *pkg_path(const struct pkg *p)
{
    return p->path;
}

bool pkg_blob(void *pkg, const struct mil_data *d, const char **file,
              uint64_t *offset)
{
    const struct pkg *k = pkg;

    return weight_files_place(&k->weights, d, file, offset);
}

void pkg_sizes(const struct pkg *p, struct pkg_sizes *out)
{
    size_t i;

    memset(out, 0, sizeof(*out));
    out->model_bytes = p->model_bytes;
    for (i = 0; i < p->weights.n; i++) {
        out->weights_bytes += p->weights.files[i]->reader.file.size;
        out->blobs += p->weights.files[i]->reader.count;
    }
}

bool pkg_is_compiled(const struct pkg *p)
{
    return p->compiled;
}

int pkg_check_description(const struct pkg *p, struct err *e)
{
    const struct err *d = &p->described.difference;

    if (d->code == ERR_OK)
        return 0;
    return err_set(e, d->code, "'%s': %s", p->path, d->text);
}

void pkg_close(struct pkg *p)
{
    if (!p)
        return;
    mil_program_free(p->program);
    weight_files_release(&p->weights);
    buf_release(&p->described.message);
    mem_free(p->path);
    mem_free(p->model_path);
    mem_free(p);
}
