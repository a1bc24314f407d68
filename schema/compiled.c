/*
 * Writer of compiled models.
 */
#include "schema/compiled.h"

#include <inttypes.h>
#include <string.h>

#include "converter/base/hash.h"
#include "converter/base/sha256.h"
#include "mil/text.h"
#include "schema/compiled_priv.h"
#include "schema/coremldata.h"
#include "schema/proto_priv.h"
#include "schema/wire_priv.h"

#define COPY_BYTES ((size_t)1 << 20)
#define MODEL_MAX_BYTES ((uint64_t)256 << 20)
#define NAME_MAX_CHARS 256

/* The compiler whose form of text and description this is, under the keys
 * that loaders know; and who wrote it. */
static const struct mil_pair build_info[] = {
    { "coremlc-component-MIL", "3520.4.1" },
    { "coremlc-version", "3520.5.1" },
    { COMPILED_WRITER, ANEMLL_VERSION },
};

struct compiled {
    const char *path;
    const struct pkg *from;
    const struct compiled_options *o;
    struct compiled_written out;
    struct err *e;
};

/* ---- what the files hold ---- */

static int put_text(const struct mil_program *p, const struct text_options *at,
                    struct buf *out, struct err *e)
{
    struct text_options to = *at;

    to.sorted = true;
    to.strict = true;
    to.build_info = build_info;
    to.n_build_info = sizeof(build_info) / sizeof(build_info[0]);
    return text_print(p, &to, out, e);
}

static int put_data(const struct mil_program *p, const struct buf *description,
                    struct buf *out, struct err *e)
{
    coremldata_put(out, p->spec_version, description->data, description->len,
                   p->n_functions);
    return buf_ok(out, e);
}

static int put_json(const struct mil_program *p, const struct buf *description,
                    const char *name, struct buf *out, struct err *e)
{
    struct arena unpacked = ARENA_INIT;
    struct wire_memory mem = { &unpacked, e };
    ProtobufCAllocator alloc = wire_allocator(&mem);
    Pb__ModelDescription *d =
        pb__model_description__unpack(&alloc, description->len,
                                      (const uint8_t *)description->data);
    int rc = -1;

    if (d)
        rc = compiled_json(p, d, name, out, e);
    else
        err_set(e, ERR_NOMEM, "no memory for the description");
    arena_release(&unpacked);
    return rc;
}

/* ---- small files ---- */

static int write_named(struct compiled *c, const char *dir, const char *name,
                       const struct buf *b)
{
    char *path = io_join(dir, name, c->e);
    int rc = -1;

    if (path)
        rc = io_write_file(path, b->data, b->len, c->e);
    mem_free(path);
    return rc;
}

static int write_text(struct compiled *c)
{
    const struct text_options at = { .blob = pkg_blob,
                                     .cookie = (void *)(uintptr_t)c->from };
    struct buf b = BUF_INIT;
    int rc = -1;

    if (!put_text(c->from->program, &at, &b, c->e))
        rc = write_named(c, c->path, COMPILED_TEXT, &b);
    c->out.text_bytes = b.len;
    buf_release(&b);
    return rc;
}

static int write_description(struct compiled *c)
{
    struct buf b = BUF_INIT;
    int rc = -1;

    if (!put_data(c->from->program, &c->from->described.message, &b, c->e))
        rc = write_named(c, c->path, COREMLDATA_NAME, &b);
    c->out.other_bytes += b.len;
    buf_release(&b);
    return rc;
}

/* The name of a file or folder without its extension. */
static int stem(const char *path, char out[NAME_MAX_CHARS], struct err *e)
{
    const char *base = io_basename(path), *dot = strrchr(base, '.');
    size_t n = dot && dot != base ? (size_t)(dot - base) : strlen(base);

    if (n >= NAME_MAX_CHARS)
        return err_set(e, ERR_INPUT, "a name of %zu characters", n);
    memcpy(out, base, n);
    out[n] = '\0';
    return 0;
}

static int write_json(struct compiled *c)
{
    char name[NAME_MAX_CHARS];
    struct buf b = BUF_INIT;
    int rc = -1;

    if (!stem(c->from->path, name, c->e) &&
        !put_json(c->from->program, &c->from->described.message, name, &b,
                  c->e))
        rc = write_named(c, c->path, COMPILED_JSON, &b);
    c->out.other_bytes += b.len;
    buf_release(&b);
    return rc;
}

static int hash_model(struct compiled *c, char out[BASE64_MAX(SHA256_BYTES)])
{
    struct buf model = BUF_INIT;
    uint8_t h[SHA256_BYTES];
    int rc = io_read_file(c->from->model_path, MODEL_MAX_BYTES, &model, c->e);

    if (!rc) {
        sha256(model.data, model.len, h);
        base64(h, sizeof(h), out);
    }
    buf_release(&model);
    return rc;
}

static int write_analytics(struct compiled *c)
{
    char hash[BASE64_MAX(SHA256_BYTES)], name[NAME_MAX_CHARS];
    char *dir = io_join(c->path, COMPILED_ANALYTICS, c->e);
    struct buf b = BUF_INIT;
    int rc = -1;

    if (dir && !stem(c->from->model_path, name, c->e) && !hash_model(c, hash) &&
        !io_mkdir(dir, c->e)) {
        analytics_put(&b, hash, name);
        if (!buf_ok(&b, c->e))
            rc = write_named(c, dir, COREMLDATA_NAME, &b);
    }
    c->out.other_bytes += b.len;
    buf_release(&b);
    mem_free(dir);
    return rc;
}

/* ---- weights ---- */

/* The folders that lead to a file below c->path. */
static int make_folders(struct compiled *c, const char *path)
{
    size_t i;

    for (i = strlen(c->path) + 1; path[i]; i++) {
        char *dir;
        int rc;

        if (path[i] != '/')
            continue;
        dir = mem_strndup(path, i, c->e);
        if (!dir)
            return -1;
        rc = io_is_dir(dir) ? 0 : io_mkdir(dir, c->e);
        mem_free(dir);
        if (rc)
            return -1;
    }
    return 0;
}

static int copy_bytes(struct compiled *c, const struct io_file *from,
                      struct io_out *to, uint8_t *room)
{
    uint64_t at;
    size_t n;

    for (at = 0; at < from->size; at += n) {
        n = from->size - at < COPY_BYTES ? (size_t)(from->size - at)
                                         : COPY_BYTES;
        if (io_pread(from, room, n, at, c->e) ||
            io_out_write(to, room, n, c->e))
            return -1;
        if (c->o->stage)
            log_progress(c->o->log, c->o->stage, at + n, from->size, "bytes");
        if (log_cancelled(c->o->log))
            return err_set(c->e, ERR_CANCELLED,
                           "interrupted while '%s' was written", to->path);
    }
    return io_unchanged(from, c->e);
}

static int copy_file(struct compiled *c, const struct io_file *from,
                     const char *to)
{
    struct io_out out = IO_OUT_INIT;
    uint8_t *room = mem_alloc(COPY_BYTES, 1, c->e);
    int rc = -1;

    if (room && !io_out_open(&out, to, c->e) &&
        !copy_bytes(c, from, &out, room))
        rc = io_out_finish(&out, c->e);
    io_out_release(&out);
    mem_free(room);
    return rc;
}

static int put_weights(struct compiled *c, const struct weight_file *f)
{
    const struct io_file *from = &f->reader.file;
    char *to = io_join(c->path, weight_files_relative(f->name), c->e);
    int rc = -1;

    if (!to || make_folders(c, to))
        goto out;
    if (io_exists(to)) { /* two spellings of one name */
        rc = 0;
        goto out;
    }
    c->out.weights_bytes += from->size;
    if (c->o->weights == COMPILED_LINK && io_link(from, to)) {
        c->out.linked_bytes += from->size;
        rc = 0;
    } else {
        rc = copy_file(c, from, to);
    }
out:
    mem_free(to);
    return rc;
}

/* ---- the whole ---- */

static int check_source(const struct pkg *from, struct err *e)
{
    const struct err *lost = &from->described.lost;

    if (from->compiled)
        return err_set(e, ERR_UNSUPPORTED, "'%s' is a compiled model already",
                       from->path);
    if (lost->code)
        return err_set(e, lost->code, "'%s': %s", from->path, lost->text);
    return pkg_check_description(from, e);
}

int compiled_fill(const char *path, const struct pkg *from,
                  const struct compiled_options *o,
                  struct compiled_written *out, struct err *e)
{
    static const struct compiled_options defaults = { COMPILED_COPY, NULL,
                                                      NULL };
    struct compiled c = { path, from, o ? o : &defaults, { 0, 0, 0, 0 }, e };
    size_t i;

    if (check_source(from, e) || write_text(&c) || write_description(&c) ||
        write_json(&c) || write_analytics(&c))
        return -1;
    for (i = 0; i < from->weights.n; i++)
        if (put_weights(&c, from->weights.files[i]))
            return -1;
    if (out)
        *out = c.out;
    return 0;
}

int compiled_write(const char *path, const struct pkg *from,
                   const struct compiled_options *o,
                   struct compiled_written *out, struct err *e)
{
    size_t n = strlen(path), k = strlen(COMPILED_SUFFIX);
    struct err ignored = ERR_INIT;

    if (n <= k || strcmp(path + n - k, COMPILED_SUFFIX) != 0)
        return err_set(e, ERR_INPUT,
                       "cannot write '%s': the name must end "
                       "in " COMPILED_SUFFIX,
                       path);
    if (io_exists(path))
        return err_set(e, ERR_INPUT, "cannot write '%s': it exists", path);
    if (!io_mkdir(path, e) && !compiled_fill(path, from, o, out, e))
        return 0;
    err_in(e, "cannot write '%s'", path);
    if (io_remove_tree(path, &ignored))
        err_in(e, "%s", ignored.text);
    return -1;
}

/* ---- measuring ---- */

/* Behind a constant that has a place and no bytes. */
struct place {
    struct mil_data d;
    const char *file;
    uint64_t offset;
};

static int read_nothing(void *cookie, uint64_t offset, void *dst, size_t n,
                        struct err *e)
{
    (void)cookie;
    (void)offset;
    (void)dst;
    (void)n;
    return err_set(e, ERR_UNSUPPORTED, "a constant that is only measured");
}

static const struct mil_data *note_place(void *cookie, struct mil_program *p,
                                         const char *file, uint64_t offset,
                                         const struct mil_type *type,
                                         struct err *e)
{
    struct place *at = arena_alloc(&p->arena, 1, sizeof(*at), e);

    (void)cookie;
    if (!at)
        return NULL;
    at->d.type = *type;
    at->d.bytes = (uint64_t)mil_type_bytes(type);
    at->d.read = read_nothing;
    at->d.cookie = at;
    at->offset = offset;
    at->file = arena_strdup(&p->arena, file, e);
    return at->file ? &at->d : NULL;
}

static bool noted_place(void *cookie, const struct mil_data *d,
                        const char **file, uint64_t *offset)
{
    const struct place *at = d->cookie;

    (void)cookie;
    if (d->read != read_nothing)
        return false;
    *file = at->file;
    *offset = at->offset;
    return true;
}

/* 64 of Base64 for the hash and the rest of analytics, but for the name. */
static void put_analytics(struct buf *out)
{
    const uint8_t none[SHA256_BYTES] = { 0 };
    char hash[BASE64_MAX(SHA256_BYTES)];

    base64(none, sizeof(none), hash);
    analytics_put(out, hash, "model");
}

int compiled_measure(const void *message, size_t n, const char *name,
                     struct compiled_written *out, struct err *e)
{
    const struct codec_options o = { { note_place, NULL }, true };
    const struct text_options at = { .blob = noted_place };
    struct codec_described d = CODEC_DESCRIBED_INIT;
    struct mil_program *p = codec_decode(message, n, &o, &d, e);
    struct buf text = BUF_INIT, other = BUF_INIT;
    int rc = -1;

    memset(out, 0, sizeof(*out));
    if (p && !put_text(p, &at, &text, e) &&
        !put_data(p, &d.message, &other, e) &&
        !put_json(p, &d.message, name, &other, e)) {
        put_analytics(&other);
        rc = buf_ok(&other, e);
    }
    out->text_bytes = text.len;
    out->other_bytes = other.len;
    buf_release(&text);
    buf_release(&other);
    buf_release(&d.message);
    mil_program_free(p);
    return rc;
}
