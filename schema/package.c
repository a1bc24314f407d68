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
#include "schema/manifest_priv.h"

#define SUFFIX ".mlpackage"
#define COMPILED ".mlmodelc"
#define WEIGHT_NAME "weight.bin"
#define MODEL_MAX_BYTES ((uint64_t)256 << 20)
#define MAX_WEIGHT_FILES 64

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
    struct blob_options bo = { NULL, NULL, 0, 0 };
    struct blob_totals totals;
    struct blob_writer *w;
    struct buf model = BUF_INIT;
    int rc = -1;

    if (o) {
        bo.log = o->log;
        bo.stage = o->stage;
        bo.progress_base = o->progress_base;
        bo.progress_total = o->progress_total;
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

struct weight_file {
    char *name; /* as the program spells it */
    struct blob_reader reader;
    struct pkg *package;
};

/* Behind a constant: where it lies. */
struct weight {
    const struct weight_file *file;
    uint64_t record, data;
    struct mil_data d;
    struct weight *next; /* with the same hash */
};

#define N_BUCKETS 4096

struct pkg {
    char *path;
    char *model_path;
    char *weights_dir; /* NULL: none */
    struct mil_program *program;
    struct weight_file *files[MAX_WEIGHT_FILES];
    size_t n_files;
    struct weight *buckets[N_BUCKETS]; /* in the program's arena */
    struct err description;
    uint64_t model_bytes;
};

static int read_weight(void *cookie, uint64_t offset, void *dst, size_t n,
                       struct err *e)
{
    const struct weight *w = cookie;

    if (offset > w->d.bytes || n > w->d.bytes - offset)
        return err_set(e, ERR_INPUT,
                       "bytes %" PRIu64 " + %zu of a constant of %" PRIu64,
                       offset, n, w->d.bytes);
    return io_pread(&w->file->reader.file, dst, n, w->data + offset, e);
}

/* The last component of a blob's file name, all of which must be plain:
 * "@model_path/weights/NAME" and shorter forms. */
static const char *weight_name(const char *file)
{
    const char *p = file, *last = file;

    for (;;) {
        size_t n = strcspn(p, "/");
        char part[256];

        if (n >= sizeof(part))
            return NULL;
        memcpy(part, p, n);
        part[n] = '\0';
        if (!io_is_component(part))
            return NULL;
        last = p;
        if (!p[n])
            break;
        p += n + 1;
    }
    return last;
}

static struct weight_file *open_weights(struct pkg *k, const char *name,
                                        struct err *e)
{
    struct weight_file *f = NULL;
    char *path = NULL;
    const char *last = weight_name(name);

    if (!last) {
        err_set(e, ERR_INPUT,
                "the weight file '%s' is no name that the "
                "format allows",
                name);
        return NULL;
    }
    if (!k->weights_dir) {
        err_set(e, ERR_INPUT,
                "a constant lies in '%s', but the package has no weights",
                name);
        return NULL;
    }
    if (k->n_files == MAX_WEIGHT_FILES) {
        err_set(e, ERR_UNSUPPORTED, "more than %d weight files",
                MAX_WEIGHT_FILES);
        return NULL;
    }
    f = mem_zalloc(1, sizeof(*f), e);
    if (!f)
        return NULL;
    f->reader.file.fd = -1;
    f->package = k;
    f->name = mem_strdup(name, e);
    path = io_join(k->weights_dir, last, e);
    if (!f->name || !path || blob_open(&f->reader, path, e)) {
        mem_free(f->name);
        mem_free(f);
        f = NULL;
    } else {
        k->files[k->n_files++] = f;
    }
    mem_free(path);
    return f;
}

static struct weight_file *find_weights(struct pkg *k, const char *name,
                                        struct err *e)
{
    size_t i;

    for (i = 0; i < k->n_files; i++)
        if (strcmp(k->files[i]->name, name) == 0)
            return k->files[i];
    return open_weights(k, name, e);
}

/* One mil_data for each (place, type): functions that share a blob share it
 * in the IR too. */
static const struct mil_data *get_weight(void *cookie, struct mil_program *p,
                                         const char *file, uint64_t offset,
                                         const struct mil_type *type,
                                         struct err *e)
{
    struct pkg *k = cookie;
    struct weight_file *f = find_weights(k, file, e);
    struct weight **bucket, *w;
    uint64_t data;

    if (!f)
        return NULL;
    bucket = &k->buckets[(offset / BLOB_ALIGN) % N_BUCKETS];
    if (blob_find(&f->reader, offset, type, &data, e))
        return NULL;
    for (w = *bucket; w; w = w->next)
        if (w->file == f && w->record == offset &&
            mil_type_equal(&w->d.type, type))
            return &w->d;
    w = arena_alloc(&p->arena, 1, sizeof(*w), e);
    if (!w)
        return NULL;
    w->file = f;
    w->record = offset;
    w->data = data;
    w->d.type = *type;
    w->d.bytes = (uint64_t)mil_type_bytes(type);
    w->d.read = read_weight;
    w->d.cookie = w;
    w->next = *bucket;
    *bucket = w;
    return &w->d;
}

/* A bare model's weights lie in `weights` beside it. */
static int find_bare(struct pkg *k, struct err *e)
{
    const char *base = io_basename(k->path);
    char *dir = base == k->path
                    ? mem_strdup(".", e)
                    : mem_strndup(k->path, (size_t)(base - k->path), e);

    k->model_path = mem_strdup(k->path, e);
    if (dir)
        k->weights_dir = io_join(dir, MANIFEST_WEIGHTS, e);
    mem_free(dir);
    if (!k->model_path || !k->weights_dir)
        return -1;
    if (!io_is_dir(k->weights_dir)) {
        mem_free(k->weights_dir);
        k->weights_dir = NULL;
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
    if (has_suffix(k->path, COMPILED))
        return err_set(e, ERR_UNSUPPORTED,
                       "it is a compiled model; pass the " SUFFIX
                       " that it was made from");
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
    k->weights_dir = m.weights;
    return 0;
}

static int read_model(struct pkg *k, bool raw, struct err *e)
{
    struct buf model = BUF_INIT;
    struct codec_options o = { { get_weight, k }, raw };
    int rc = -1;

    if (io_read_file(k->model_path, MODEL_MAX_BYTES, &model, e) == 0) {
        k->model_bytes = model.len;
        k->program =
            codec_decode(buf_text(&model), model.len, &o, &k->description, e);
        rc = k->program ? 0 : -1;
    }
    buf_release(&model);
    return rc;
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
    if (!k->path || find_model(k, e) || read_model(k, raw, e)) {
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
    const struct weight *w;

    if (!d || d->read != read_weight)
        return false;
    w = d->cookie;
    if (w->file->package != pkg)
        return false;
    *file = w->file->name;
    *offset = w->record;
    return true;
}

void pkg_sizes(const struct pkg *p, struct pkg_sizes *out)
{
    size_t i;

    memset(out, 0, sizeof(*out));
    out->model_bytes = p->model_bytes;
    for (i = 0; i < p->n_files; i++) {
        out->weights_bytes += p->files[i]->reader.file.size;
        out->blobs += p->files[i]->reader.count;
    }
}

int pkg_check_description(const struct pkg *p, struct err *e)
{
    if (p->description.code == ERR_OK)
        return 0;
    return err_set(e, p->description.code, "'%s': %s", p->path,
                   p->description.text);
}

void pkg_close(struct pkg *p)
{
    size_t i;

    if (!p)
        return;
    mil_program_free(p->program);
    for (i = 0; i < p->n_files; i++) {
        blob_close(&p->files[i]->reader);
        mem_free(p->files[i]->name);
        mem_free(p->files[i]);
    }
    mem_free(p->path);
    mem_free(p->model_path);
    mem_free(p->weights_dir);
    mem_free(p);
}
