/*
 * Lint of the folder: which models there are, which of them are the
 * package's, and what else lies there.
 */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "converter/assets.h"
#include "converter/base/io.h"
#include "converter/base/mem.h"
#include "converter/lint_priv.h"

#define SOURCE ".mlpackage"
#define COMPILED ".mlmodelc"
#define PHONE_FILE_BYTES 1000000000u
#define BLOB_LIMIT ((uint64_t)1 << 31)
#define MAX_DEPTH 16 /* of folders in a package */

/* ---- names ---- */

static bool ends_with(const char *s, const char *end)
{
    size_t n = strlen(s), k = strlen(end);

    return n > k && !strcmp(s + n - k, end);
}

static bool is_digit(char c)
{
    return c >= '0' && c <= '9';
}

/* The number at the end of a name: "_chunk_XXofYY", two digits each. */
static bool chunk_of(const char *stem, int *chunk, int *total)
{
    size_t n = strlen(stem);
    const char *p = stem + n - 13;

    *chunk = *total = 0;
    if (n < 14 || memcmp(p, "_chunk_", 7) != 0 || memcmp(p + 9, "of", 2) != 0)
        return false;
    for (int i = 7; i < 13; i += i == 8 ? 3 : 1)
        if (!is_digit(p[i]))
            return false;
    *chunk = 10 * (p[7] - '0') + p[8] - '0';
    *total = 10 * (p[11] - '0') + p[12] - '0';
    return true;
}

static enum lint_kind kind_of(const char *stem)
{
    if (strstr(stem, "_monolithic_full"))
        return LK_WHOLE;
    if (strstr(stem, "_FFN_PF"))
        return LK_CHUNK;
    if (strstr(stem, "_FFN") || strstr(stem, "_prefill"))
        return LK_OTHER; /* what conversions leave behind */
    if (strstr(stem, "_embeddings"))
        return LK_EMBEDDINGS;
    return strstr(stem, "_lm_head") ? LK_HEAD : LK_OTHER;
}

/* The stem of a model's file name; 0 for other files. */
static size_t stem_length(const char *name)
{
    if (ends_with(name, SOURCE))
        return strlen(name) - strlen(SOURCE);
    return ends_with(name, COMPILED) ? strlen(name) - strlen(COMPILED) : 0;
}

static struct lint_model *find_model(struct lint *l, const char *stem,
                                     size_t len)
{
    for (size_t i = 0; i < l->n_models; i++)
        if (strlen(l->models[i].stem) == len &&
            !memcmp(l->models[i].stem, stem, len))
            return &l->models[i];
    return NULL;
}

/* The folder's models, one for the two forms of a stem. */
static int collect(struct lint *l)
{
    l->models = mem_zalloc(l->n_names, sizeof(*l->models), l->e);
    if (!l->models)
        return -1;
    for (size_t i = 0; i < l->n_names; i++) {
        size_t len = stem_length(l->names[i]);
        struct lint_model *m = len ? find_model(l, l->names[i], len) : NULL;

        if (!len)
            continue;
        if (!m) {
            m = &l->models[l->n_models++];
            m->stem = mem_strndup(l->names[i], len, l->e);
            if (!m->stem)
                return -1;
            m->kind = kind_of(m->stem);
            chunk_of(m->stem, &m->chunk, &m->total);
        }
        if (ends_with(l->names[i], SOURCE))
            m->source = true;
        else
            m->compiled = true;
    }
    for (size_t i = 0; i < l->n_models; i++) {
        struct lint_model *m = &l->models[i];

        m->name =
            mem_printf(l->e, "%s%s", m->stem, m->source ? SOURCE : COMPILED);
        if (!m->name)
            return -1;
    }
    return 0;
}

/* ---- which of them are the package's ---- */

static const char *const file_keys[] = { "embeddings", "ffn", "lm_head" };

/* The name that readers make of the prefix and lut_* keys. */
static char *canonical(const struct lint *l, int part, int chunk, int total)
{
    static const char *const middle[] = { "embeddings", "FFN_PF", "lm_head" };
    const struct lint_meta *m = &l->meta;
    const char *prefix = m->prefix ? m->prefix : "llama";
    char lut[16] = "";

    if (m->bits[part] > 0)
        snprintf(lut, sizeof(lut), "_lut%d", m->bits[part]);
    if (part == 1)
        return mem_printf(l->e, "%s_FFN_PF%s_chunk_%02dof%02d", prefix, lut,
                          chunk, total);
    return mem_printf(l->e, "%s_%s%s", prefix, middle[part], lut);
}

/* The only model of a kind, or NULL. */
static struct lint_model *only(struct lint *l, enum lint_kind kind)
{
    struct lint_model *found = NULL;

    for (size_t i = 0; i < l->n_models; i++)
        if (l->models[i].kind == kind) {
            if (found)
                return NULL;
            found = &l->models[i];
        }
    return found;
}

/* Told where it is wanted by. */
static void missing(struct lint *l, const char *key, const char *stem)
{
    char where[128];

    snprintf(where, sizeof(where), "meta.yaml: %s", key);
    lint_add(l, LINT_ID_part_missing, where,
             "there is neither '%.180s" SOURCE "' nor '%.180s" COMPILED "'",
             stem, stem);
}

static void check_name(struct lint *l, const struct lint_model *m, int part)
{
    char *name = canonical(l, part, m->chunk, m->total);

    if (l->meta.params && name && strcmp(name, m->stem) != 0)
        lint_add(l, LINT_ID_part_names, m->name, "'%s' is made of the keys",
                 name);
    mem_free(name);
}

/* Embeddings or LM head: by its key, else by the made name, else the only
 * one of its kind. */
static struct lint_model *pick(struct lint *l, int part, enum lint_kind kind)
{
    const char *key = l->meta.file[part];
    char *name = canonical(l, part, 0, 0);
    size_t len = key ? stem_length(key) : 0;
    struct lint_model *m = NULL;

    if (key)
        m = find_model(l, key, len ? len : strlen(key));
    else if (name)
        m = find_model(l, name, strlen(name));
    if (!m && key)
        missing(l, file_keys[part], key);
    if (!m)
        m = only(l, kind);
    if (!m && !key && name)
        missing(l, file_keys[part], name);
    if (m) {
        m->member = true;
        check_name(l, m, part);
    }
    mem_free(name);
    return m;
}

/* What chunk names have in front of "_chunk_": by the key, else by the made
 * name, else by the first chunk that is there. Fresh; NULL without memory. */
static char *chunk_base(struct lint *l)
{
    const char *key = l->meta.file[1], *p;
    char *name;

    if (key) {
        size_t len = stem_length(key);

        p = strstr(key, "_chunk_");
        return mem_strndup(key,
                           p     ? (size_t)(p - key)
                           : len ? len
                                 : strlen(key),
                           l->e);
    }
    name = canonical(l, 1, 1, 1);
    if (!name)
        return NULL;
    name[strlen(name) - 13] = '\0';
    for (size_t i = 0; i < l->n_models; i++)
        if (l->models[i].kind == LK_CHUNK &&
            !strncmp(l->models[i].stem, name, strlen(name)))
            return name;
    for (size_t i = 0; i < l->n_models; i++)
        if (l->models[i].kind == LK_CHUNK && l->models[i].chunk) {
            mem_free(name);
            return mem_strndup(l->models[i].stem,
                               strlen(l->models[i].stem) - 13, l->e);
        }
    return name;
}

static bool is_chunk(const struct lint_model *m, const char *base)
{
    size_t n = strlen(base);

    return !strncmp(m->stem, base, n) && !strncmp(m->stem + n, "_chunk_", 7);
}

/* The total: as the first file's name says, else meta.yaml. */
static int chunk_total(struct lint *l, const char *base)
{
    for (size_t i = 0; i < l->n_models; i++)
        if (is_chunk(&l->models[i], base) && l->models[i].total)
            return l->models[i].total;
    return l->meta.chunks ? (int)l->meta.chunks : 1;
}

/* As chat.py counts: all that the stem and "_chunk_" begin. */
static void count_chunks(struct lint *l, const char *base)
{
    size_t n[2] = { 0, 0 };
    char where[256];

    for (size_t i = 0; i < l->n_models; i++)
        if (is_chunk(&l->models[i], base)) {
            n[0] += l->models[i].source;
            n[1] += l->models[i].compiled;
        }
    snprintf(where, sizeof(where), "%.200s_chunk_*", base);
    for (int form = 0; form < 2; form++)
        if (n[form] && n[form] != (size_t)l->n_chunks)
            lint_add(l, LINT_ID_chunk_count, where,
                     "%zu files %s, the names say %d", n[form],
                     form ? COMPILED : SOURCE, l->n_chunks);
}

static void pick_chunk(struct lint *l, const char *base, int i)
{
    char *stem = mem_printf(l->e, "%s_chunk_%02dof%02d", base, i, l->n_chunks);
    struct lint_model *m = stem ? find_model(l, stem, strlen(stem)) : NULL;

    if (m) {
        m->member = true;
        check_name(l, m, 1);
        l->chunk[i - 1] = m;
    } else if (stem) {
        missing(l, "ffn", stem);
    }
    mem_free(stem);
}

static int pick_chunks(struct lint *l)
{
    char *base = chunk_base(l);

    if (!base)
        return -1;
    l->n_chunks = chunk_total(l, base);
    for (int i = 1; i <= l->n_chunks; i++)
        pick_chunk(l, base, i);
    if (l->meta.chunks && l->meta.chunks != l->n_chunks)
        lint_add(l, LINT_ID_chunk_total, "meta.yaml: num_chunks",
                 "%" PRId64 ", the names say %d", l->meta.chunks, l->n_chunks);
    count_chunks(l, base);
    for (size_t i = 0; i < l->n_models; i++) {
        const struct lint_model *m = &l->models[i];

        if (m->kind == LK_CHUNK &&
            (!m->chunk || m->chunk > m->total ||
             (!m->member && is_chunk(m, base) && m->total != l->n_chunks)))
            lint_add(l, LINT_ID_chunk_name, m->name,
                     "not one of %d chunks by its name", l->n_chunks);
    }
    mem_free(base);
    return 0;
}

static void pick_whole(struct lint *l)
{
    const char *key = l->meta.file[1];

    if (key)
        l->whole =
            find_model(l, key,
                       stem_length(key) ? stem_length(key) : strlen(key));
    if (!l->whole)
        l->whole = only(l, LK_WHOLE);
    if (l->whole)
        l->whole->member = true;
    else
        missing(l, "monolithic_model", key ? key : "*_monolithic_full*");
}

int lint_files_find(struct lint *l)
{
    if (collect(l))
        return -1;
    if (l->meta.whole) {
        pick_whole(l);
        return l->e->code ? -1 : 0;
    }
    l->embeddings = pick(l, 0, LK_EMBEDDINGS);
    l->head = pick(l, 2, LK_HEAD);
    return pick_chunks(l) || l->e->code ? -1 : 0;
}

/* ---- opening ---- */

/* What is not known here is kept if the file can be read at all. */
static struct pkg *open_form(struct lint *l, struct lint_model *m,
                             struct err *e)
{
    char *path = io_join(l->dir, m->name, l->e);
    struct err raw = ERR_INIT;
    struct pkg *p = path ? pkg_open(path, e) : NULL;

    if (!p && path && e->code == ERR_UNSUPPORTED) {
        p = pkg_open_raw(path, &raw);
        if (p) {
            m->raw = true;
            lint_add(l, LINT_ID_program_op_unknown, m->name, "%s", e->text);
            err_reset(e);
        }
    }
    mem_free(path);
    return p;
}

static int open_model(struct lint *l, struct lint_model *m)
{
    struct err e = ERR_INIT;

    m->pkg = open_form(l, m, &e);
    if (!m->pkg)
        lint_add_err(l, LINT_ID_program_unreadable, m->name, &e);
    return l->e->code ? -1 : 0;
}

int lint_models_open(struct lint *l)
{
    for (size_t i = 0; i < l->n_models; i++)
        if (l->models[i].member && open_model(l, &l->models[i]))
            return -1;
    return 0;
}

/* ---- what lies in the folder ---- */

static void check_forms(struct lint *l)
{
    for (size_t i = 0; i < l->n_models; i++) {
        const struct lint_model *m = &l->models[i];

        if (!m->member)
            lint_add(l, LINT_ID_model_stray, m->name,
                     "meta.yaml and the names of the parts lead elsewhere");
        else if (!m->compiled)
            lint_add(l, LINT_ID_part_compiled_missing, m->name,
                     "no '%s" COMPILED "'", m->stem);
        else if (!m->source)
            lint_add(l, LINT_ID_part_source_missing, m->name,
                     "no '%s" SOURCE "'", m->stem);
    }
}

static void check_strays(struct lint *l)
{
    static const char *const known[] = { "meta.yaml",   "gate.json",
                                         "report.json", "README.md",
                                         "LICENSE",     "LICENSE.txt",
                                         "NOTICE",      ".gitattributes" };

    for (size_t i = 0; i < l->n_names; i++) {
        const char *name = l->names[i];
        bool ours = stem_length(name) || assets_name(name);

        for (size_t k = 0; k < sizeof(known) / sizeof(known[0]); k++)
            ours = ours || !strcmp(name, known[k]);
        if (!ours)
            lint_add(l, LINT_ID_file_stray, name, "no file of a package");
    }
}

/* A model's size on disk is that of its weight file, as phones see it. */
static void check_sizes(struct lint *l)
{
    int at = 0;

    for (struct lint_model *m; (m = lint_next_part(l, &at)) != NULL;) {
        struct pkg_sizes s;

        pkg_sizes(m->pkg, &s);
        if (s.weights_bytes > PHONE_FILE_BYTES)
            lint_add(l,
                     m->kind == LK_EMBEDDINGS ? LINT_ID_weights_table
                                              : LINT_ID_weights_phone,
                     m->name, "%" PRIu64 " bytes", s.weights_bytes);
    }
}

static uint64_t largest_blob(const struct mil_program *p, const char **name)
{
    uint64_t most = 0;

    for (size_t i = 0; i < p->n_functions; i++) {
        const struct mil_function *f = p->functions[i];

        for (size_t k = 1; k < f->n_values; k++) {
            const struct mil_const *c = f->values[k].konst;

            if (c && c->data && c->data->bytes > most) {
                most = c->data->bytes;
                *name = f->values[k].name ? f->values[k].name : "(inline)";
            }
        }
    }
    return most;
}

static void check_blobs(struct lint *l)
{
    int at = 0;

    for (struct lint_model *m; (m = lint_next_part(l, &at)) != NULL;) {
        const char *name = "";
        uint64_t n = largest_blob(pkg_program(m->pkg), &name);

        /* Gather tables are read in place and may exceed it. */
        if (m->kind != LK_EMBEDDINGS && n >= BLOB_LIMIT)
            lint_add(l, LINT_ID_weight_too_large, m->name,
                     "'%s' has %" PRIu64 " bytes", name, n);
    }
}

/* One file: links, and files that hold no data. */
static void check_file(struct lint *l, const char *path, const char *shown,
                       const struct stat *st)
{
    struct err e = ERR_INIT;
    struct io_file f = IO_FILE_INIT;

    if (S_ISLNK(st->st_mode))
        lint_add(l, LINT_ID_file_link, shown, "a link");
    if (io_open_input(&f, path, &e))
        lint_add_err(l, LINT_ID_file_placeholder, shown, &e);
    else if (f.holes)
        lint_add(l, LINT_ID_file_placeholder, shown,
                 "a file with holes: %" PRIu64 " of %" PRIu64
                 " bytes are on the disk",
                 f.disk_bytes, f.size);
    io_close(&f);
}

static int walk(struct lint *l, const char *path, const char *shown, int depth);

static int walk_entry(struct lint *l, const char *dir, const char *shown,
                      const char *name, int depth)
{
    char *path = io_join(dir, name, l->e);
    char *label = mem_printf(l->e, "%s%s%s", shown, *shown ? "/" : "", name);
    struct stat st;
    int rc = -1;

    if (path && label) {
        rc = 0;
        if (lstat(path, &st))
            lint_add(l, LINT_ID_file_placeholder, label, "it cannot be read");
        else if (S_ISDIR(st.st_mode))
            rc = walk(l, path, label, depth + 1);
        else if (S_ISLNK(st.st_mode) && io_is_dir(path))
            lint_add(l, LINT_ID_file_link, label, "a link to a folder");
        else
            check_file(l, path, label, &st);
    }
    mem_free(path);
    mem_free(label);
    return rc;
}

static int walk(struct lint *l, const char *path, const char *shown, int depth)
{
    char **names;
    size_t n;
    int rc = 0;

    if (depth > MAX_DEPTH)
        return 0;
    if (io_list(path, &names, &n, l->e))
        return -1;
    for (size_t i = 0; !rc && i < n; i++)
        rc = walk_entry(l, path, shown, names[i], depth);
    io_list_free(names, n);
    return rc;
}

int lint_files_check(struct lint *l)
{
    check_forms(l);
    check_strays(l);
    check_sizes(l);
    check_blobs(l);
    return walk(l, l->dir, "", 0);
}
