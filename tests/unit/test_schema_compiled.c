/*
 * Compiled models: against the output of Apple's compiler, to the byte where
 * the format is settled; written, read back, equal to their source; what is
 * refused.
 */
#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "converter/base/io.h"
#include "converter/base/json.h"
#include "converter/base/mem.h"
#include "converter/base/num.h"
#include "mil/text.h"
#include "schema/compiled.h"
#include "schema/coremldata_priv.h"
#include "schema/model.pb-c.h"
#include "t_dir.h"
#include "t_schema.h"

static const char *dir;

static void setup(void)
{
    dir = t_dir_new();
}

static void drop(void)
{
    t_dir_drop(dir);
}

TestSuite(compiled, .init = setup, .fini = drop);

/* A path in the directory that outlives later ones. */
static const char *place(const char *name)
{
    static char ring[16][1024];
    static int at;
    char *p = ring[at++ % 16];

    snprintf(p, sizeof(ring[0]), "%s/%s", dir, name);
    return p;
}

static struct buf contents(const char *folder, const char *name)
{
    struct buf b = BUF_INIT;

    ts_read(&b, t_path(folder, name));
    return b;
}

/* ---- Apple's output ---- */

#define GOLDEN "goldens/mlmodelc/"

/* Under which name Apple's compiler saw the source: a class is called so. */
static const struct golden {
    const char *name, *source, *as;
} goldens[] = {
    { "flexible-enumerated", "input.mlmodel", "input.mlmodel" },
    { "flexible-gather", "input.mlmodel", "input.mlmodel" },
    { "flexible-multifunction", "input.mlmodel", "input.mlmodel" },
    { "quantized-constexpr", "input.mlmodel", "input.mlmodel" },
    { "silero-vad-unified-v6.0.0", "source.mlpackage",
      "silero-vad-unified-v6.0.0.mlpackage" },
    { "unified_256ms_palette_8bit", "source.mlpackage",
      "unified_256ms_palette_8bit.mlpackage" },
    { "unified_int8", "source.mlpackage", "unified_int8.mlpackage" },
    { "unified_palette_4bit", "source.mlpackage",
      "unified_palette_4bit.mlpackage" },
    { "unified_palette_6bit", "source.mlpackage",
      "unified_palette_6bit.mlpackage" },
};
#define N_GOLDENS (sizeof(goldens) / sizeof(goldens[0]))

/* Identifiers of enumerated shapes, of which only the order is known. */
static void drop_ids(struct buf *b)
{
    char *p = strstr(b->data, "(\"EnumeratedShapes\", {");

    for (p = p ? strstr(p, "{\"") : NULL; p; p = strstr(p + 10, "}}}, {\"")) {
        p = strstr(p, "{\"");
        memset(p + 2, '.', 8);
    }
}

/* The version, and all behind buildInfo. */
static void same_text(const char *apple, const char *ours)
{
    struct buf a = contents(apple, "model.mil");
    struct buf b = contents(ours, "model.mil");
    char *x, *y;

    drop_ids(&a);
    drop_ids(&b);
    cr_assert_eq(strncmp(a.data, b.data, 13), 0, "%s", apple);
    x = strstr(a.data, "\n{\n");
    y = strstr(b.data, "\n{\n");
    cr_assert(x && y);
    if (a.data[a.len - 1] == '\n') /* which one of them has */
        a.data[a.len - 1] = '\0';
    cr_assert_str_eq(x, y);
    buf_release(&a);
    buf_release(&b);
}

static int by_key(const void *a, const void *b)
{
    const Pb__Metadata__UserDefinedEntry *const *x = a, *const *y = b;

    return strcmp((*x)->key, (*y)->key);
}

/* The description with its user's metadata in order: a map has none. */
static void in_order(const struct coremldata *d, struct buf *out)
{
    Pb__ModelDescription *m =
        pb__model_description__unpack(NULL, d->description_bytes,
                                      d->description);
    size_t n;

    cr_assert_not_null(m);
    n = pb__model_description__get_packed_size(m);
    cr_assert_eq(n, d->description_bytes);
    if (m->metadata && m->metadata->n_userdefined)
        qsort(m->metadata->userdefined, m->metadata->n_userdefined,
              sizeof(*m->metadata->userdefined), by_key);
    pb__model_description__pack(m, buf_extend(out, n));
    pb__model_description__free_unpacked(m, NULL);
}

static void same_data(const char *apple, const char *ours)
{
    struct buf a = contents(apple, "coremldata.bin");
    struct buf b = contents(ours, "coremldata.bin");
    struct buf x = BUF_INIT, y = BUF_INIT;
    struct coremldata da, db;
    struct err e = ERR_INIT;
    size_t at, tail;

    cr_assert_eq(coremldata_read(a.data, a.len, &da, &e), 0, "%s", e.text);
    cr_assert_eq(coremldata_read(b.data, b.len, &db, &e), 0, "%s", e.text);
    cr_assert_eq(a.len, b.len, "%s", apple);
    in_order(&da, &x);
    in_order(&db, &y);
    cr_assert_eq(x.len, y.len);
    cr_assert_eq(memcmp(x.data, y.data, x.len), 0, "%s", apple);
    at = (size_t)((const char *)da.description - a.data);
    tail = at + da.description_bytes;
    cr_assert_eq(memcmp(a.data, b.data, at), 0, "%s", apple);
    cr_assert_eq(memcmp(a.data + tail, b.data + tail, a.len - tail), 0, "%s",
                 apple);
    buf_release(&a);
    buf_release(&b);
    buf_release(&x);
    buf_release(&y);
}

static void same_json(const char *apple, const char *ours)
{
    struct buf a = contents(apple, "metadata.json");
    struct buf b = contents(ours, "metadata.json");
    struct err e = ERR_INIT;
    struct js_doc *x = js_parse(a.data, a.len, &e);
    struct js_doc *y = js_parse(b.data, b.len, &e);
    const struct js_node *m, *n;

    cr_assert(x && y, "%s", e.text);
    m = js_first(js_root(x));
    n = js_first(js_root(y));
    for (const struct js_node *k = js_first(m); k; k = js_next(k))
        cr_expect(js_get(n, js_key(k)) && js_equal(k, js_get(n, js_key(k))),
                  "%s: %s", apple, js_key(k));
    cr_expect_eq(js_count(m), js_count(n), "%s", apple);
    js_free(x);
    js_free(y);
    buf_release(&a);
    buf_release(&b);
}

static void same_files(const char *apple, const char *ours, const char *folder)
{
    char **names;
    struct err e = ERR_INIT;
    size_t n;

    if (!io_is_dir(t_path(apple, folder)))
        return;
    cr_assert_eq(io_list(t_path(apple, folder), &names, &n, &e), 0);
    for (size_t i = 0; i < n; i++) {
        char name[300];
        struct buf a, b;

        snprintf(name, sizeof(name), "%s/%s", folder, names[i]);
        a = contents(apple, name);
        b = contents(ours, name);
        cr_assert_eq(a.len, b.len, "%s/%s", apple, name);
        cr_assert_eq(memcmp(a.data, b.data, a.len), 0, "%s/%s", apple, name);
        buf_release(&a);
        buf_release(&b);
    }
    io_list_free(names, n);
}

static struct pkg *open_raw(const char *path)
{
    struct err e = ERR_INIT;
    struct pkg *k = pkg_open_raw(path, &e);

    cr_assert_not_null(k, "%s", e.text);
    return k;
}

static void compile(const char *from, const char *to)
{
    struct pkg *k = open_raw(from);
    struct err e = ERR_INIT;

    cr_assert_eq(compiled_write(to, k, NULL, NULL, &e), 0, "%s", e.text);
    pkg_close(k);
}

Test(compiled, what_apples_compiler_writes)
{
    for (size_t i = 0; i < N_GOLDENS; i++) {
        const struct golden *g = &goldens[i];
        char name[300], apple[1024], source[1024];
        const char *from, *to, *found;

        snprintf(name, sizeof(name), GOLDEN "%s/%s", g->name, g->source);
        found = ts_shared(name);
        if (!found)
            cr_skip_test("no shared goldens");
        snprintf(source, sizeof(source), "%s", found);
        snprintf(name, sizeof(name), GOLDEN "%s/apple.mlmodelc", g->name);
        snprintf(apple, sizeof(apple), "%s", ts_shared(name));
        from = place(g->as);
        to = place("ours.mlmodelc");
        if (strcmp(g->as, g->source) == 0)
            from = source;
        else
            cr_assert_eq(symlink(source, from), 0);
        compile(from, to);
        same_text(apple, to);
        same_data(apple, to);
        same_json(apple, to);
        same_files(apple, to, "analytics");
        same_files(apple, to, "weights");
        t_dir_drop(dir);
        dir = t_dir_new();
    }
}

/* ---- reading ---- */

/* A golden's compiled model, with the weights of its source where it came
 * without; NULL where there are no goldens. */
static const char *apple_model(const char *name)
{
    char part[300], from[1024];
    const char *found, *to;
    static const char *const parts[] = { "model.mil", "coremldata.bin",
                                         "weights" };

    snprintf(part, sizeof(part), GOLDEN "%s/apple.mlmodelc", name);
    if (!ts_shared(part))
        return NULL;
    snprintf(part, sizeof(part), "%s.mlmodelc", name);
    to = place(part);
    cr_assert_eq(io_mkdir(to, &(struct err)ERR_INIT), 0);
    for (size_t i = 0; i < 3; i++) {
        snprintf(part, sizeof(part), GOLDEN "%s/apple.mlmodelc/%s", name,
                 parts[i]);
        found = ts_shared(part);
        snprintf(part, sizeof(part),
                 GOLDEN "%s/source.mlpackage/Data/com.apple.CoreML/%s", name,
                 parts[i]);
        if (!found)
            found = ts_shared(part);
        if (!found)
            continue;
        snprintf(from, sizeof(from), "%s", found);
        cr_assert_eq(symlink(from, t_path(to, parts[i])), 0);
    }
    return to;
}

/* Apple's own text, read and printed: the same, but for identifiers and one
 * newline. */
Test(compiled, apples_output_is_read)
{
    static const char *const names[] = {
        "add_model",
        "flexible-enumerated",
        "flexible-gather",
        "flexible-multifunction",
        "quantized-constexpr",
        "silero-vad-unified-v6.0.0",
        "unified_256ms_palette_8bit",
        "unified_int8",
        "unified_palette_4bit",
        "unified_palette_6bit",
    };

    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        const char *path = apple_model(names[i]);
        struct err e = ERR_INIT;
        struct buf want, got = BUF_INIT;
        struct pkg *k;
        struct text_options o = { .blob = pkg_blob, .sorted = true };

        if (!path)
            cr_skip_test("no shared goldens");
        want = contents(path, "model.mil");
        k = open_raw(path);
        cr_assert(pkg_is_compiled(k));
        cr_assert_eq(pkg_check_description(k, &e), 0, "%s", e.text);
        o.cookie = k;
        cr_assert_eq(text_print(pkg_program(k), &o, &got, &e), 0, "%s", e.text);
        drop_ids(&want);
        drop_ids(&got);
        want.len -= want.data[want.len - 1] == '\n';
        cr_assert_eq(want.len, got.len, "%s", names[i]);
        cr_assert_eq(memcmp(want.data, got.data, got.len), 0, "%s", names[i]);
        pkg_close(k);
        buf_release(&want);
        buf_release(&got);
    }
}

/* Apple's compiled models are their sources in another form. */
Test(compiled, apples_output_is_its_source)
{
    for (size_t i = 0; i < N_GOLDENS; i++) {
        char name[300];
        const char *path;
        struct err e = ERR_INIT;
        struct pkg *source, *apple;

        snprintf(name, sizeof(name), GOLDEN "%s/%s", goldens[i].name,
                 goldens[i].source);
        path = ts_shared(name);
        if (!path)
            cr_skip_test("no shared goldens");
        source = open_raw(path);
        apple = open_raw(apple_model(goldens[i].name));
        cr_expect_eq(pkg_same(source, apple, &e), 0, "%s", e.text);
        cr_expect_str_eq(pkg_program(source)->functions[0]->name,
                         pkg_program(apple)->functions[0]->name);
        pkg_close(source);
        pkg_close(apple);
    }
}
