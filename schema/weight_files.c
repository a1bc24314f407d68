/*
 * Weight files by the names in a program. A name leads to a file inside the
 * model or nowhere: each component of it must be plain.
 */
#include "schema/weight_files_priv.h"

#include <inttypes.h>
#include <string.h>

#define HERE "@model_path/"
#define WEIGHTS "weights/"
#define COMPONENT_MAX 255

struct weight {
    const struct weight_file *file;
    uint64_t record, data;
    struct mil_data d;
    struct weight *next; /* with the same hash */
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

/* ---- names ---- */

const char *weight_files_relative(const char *name)
{
    const char *p;

    if (strncmp(name, HERE, strlen(HERE)) == 0)
        name += strlen(HERE);
    for (p = name;; p++) {
        char part[COMPONENT_MAX + 1];
        size_t n = strcspn(p, "/");

        if (n > COMPONENT_MAX)
            return NULL;
        memcpy(part, p, n);
        part[n] = '\0';
        if (!io_is_component(part))
            return NULL;
        p += n;
        if (!*p)
            return name;
    }
}

/* The path of a name's file below the folder of weights. */
static const char *below(const struct weight_files *w, const char *relative)
{
    const char *slash = strrchr(relative, '/');

    if (w->whole)
        return relative;
    if (strncmp(relative, WEIGHTS, strlen(WEIGHTS)) == 0)
        return relative + strlen(WEIGHTS);
    return slash ? slash + 1 : relative;
}

/* ---- files ---- */

static struct weight_file *open_file(struct weight_files *w, const char *name,
                                     const char *relative, struct err *e)
{
    struct weight_file *f = mem_zalloc(1, sizeof(*f), e);
    char *path;

    if (!f)
        return NULL;
    f->reader.file.fd = -1;
    f->owner = w;
    f->name = mem_strdup(name, e);
    path = io_join(w->dir, below(w, relative), e);
    if (!f->name || !path || blob_open(&f->reader, path, e)) {
        mem_free(f->name);
        mem_free(f);
        f = NULL;
    } else {
        w->files[w->n++] = f;
    }
    mem_free(path);
    return f;
}

static struct weight_file *find_file(struct weight_files *w, const char *name,
                                     struct err *e)
{
    const char *relative;
    size_t i;

    for (i = 0; i < w->n; i++)
        if (strcmp(w->files[i]->name, name) == 0)
            return w->files[i];
    relative = weight_files_relative(name);
    if (!relative)
        err_set(e, ERR_INPUT,
                "the weight file '%s' is no name that the format allows", name);
    else if (!w->dir)
        err_set(e, ERR_INPUT,
                "a constant lies in '%s', but the package has no weights",
                name);
    else if (w->n == WEIGHT_FILES_MAX)
        err_set(e, ERR_UNSUPPORTED, "more than %d weight files",
                WEIGHT_FILES_MAX);
    else
        return open_file(w, name, relative, e);
    return NULL;
}

/* One mil_data for each (place, type): functions that share a blob share it
 * in the IR too. */
const struct mil_data *weight_files_get(void *files, struct mil_program *p,
                                        const char *name, uint64_t offset,
                                        const struct mil_type *type,
                                        struct err *e)
{
    struct weight_files *own = files;
    struct weight_file *f = find_file(own, name, e);
    struct weight **bucket, *w;
    uint64_t data;

    if (!f)
        return NULL;
    bucket = &own->buckets[(offset / BLOB_ALIGN) % WEIGHT_BUCKETS];
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

bool weight_files_place(const struct weight_files *w, const struct mil_data *d,
                        const char **name, uint64_t *offset)
{
    const struct weight *k;

    if (!d || d->read != read_weight)
        return false;
    k = d->cookie;
    if (k->file->owner != w)
        return false;
    *name = k->file->name;
    *offset = k->record;
    return true;
}

void weight_files_release(struct weight_files *w)
{
    size_t i;

    for (i = 0; i < w->n; i++) {
        blob_close(&w->files[i]->reader);
        mem_free(w->files[i]->name);
        mem_free(w->files[i]);
    }
    mem_free(w->dir);
    memset(w, 0, sizeof(*w));
}
