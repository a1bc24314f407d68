/*
 * The Swift package: typed values, chunk names by their digits, buffers,
 * tokenizer files; and the shell script that publishes packages.
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "contract.h"
#include "converter/base/json.h"

/* A number in quotes is none, and falls to the default. */
static int64_t typed_int(struct ct_yaml *y, const char *key, int64_t otherwise)
{
    bool plain = false;
    const char *s = ct_yaml_get(y, false, key, &plain);
    char *end;
    int64_t v;

    if (!s || !plain || !*s)
        return otherwise;
    v = strtoll(s, &end, 10);
    return *end ? otherwise : v;
}

/* A value that YAML reads as a string. */
static const char *typed_text(struct ct_yaml *y, bool info, const char *key)
{
    bool plain = false;
    const char *s = ct_yaml_get(y, info, key, &plain);
    char *end;

    if (!s || !*s)
        return NULL;
    strtod(s, &end);
    return plain && !*end ? NULL : s;
}

/* Swift loads .mlmodelc alone. Where a package has none yet, what stands for
 * it is the .mlpackage that it will be compiled from. */
static bool compiled(struct ct *c, const char *dir, const char *name,
                     char out[700])
{
    size_t n = strlen(name);

    if (n < 10 || strcmp(name + n - 9, ".mlmodelc") != 0)
        return ct_fail(c->why, "'%s' is no .mlmodelc", name);
    snprintf(out, 700, "%s/%s", dir, name);
    if (ct_exists(out))
        return true;
    snprintf(out, 700, "%s/%.*s.mlpackage", dir, (int)(n - 9), name);
    return ct_exists(out) || ct_fail(c->why, "no '%s'", name);
}

/* The digits between "_chunk_" and "of" are replaced, two of them. */
static bool chunk_paths(struct ct *c, const char *dir, const char *ffn)
{
    const char *p = strstr(ffn, "_chunk_");

    if (!p || strncmp(p + 9, "of", 2) != 0)
        return ct_fail(c->why, "'%s' has no two digits to replace", ffn);
    for (int i = 0; i < c->chunks; i++) {
        char name[300];

        snprintf(name, sizeof(name), "%.*s%02d%s", (int)(p - ffn) + 7, ffn,
                 i + 1, p + 9);
        if (!compiled(c, dir, name, c->ffn[i]))
            return false;
    }
    return true;
}

/* Every output goes into a buffer of its own: fp16, of a fixed shape. */
static bool check_buffers(struct ct *c)
{
    for (int i = 1; i < c->chunks + 2; i++) {
        const struct mil_program *p = pkg_program(c->pkg[i]);

        for (size_t k = 0; k < p->n_functions; k++) {
            const struct mil_function *f = p->functions[k];

            for (size_t o = 0; o < f->n_outputs; o++) {
                const struct mil_value *v = mil_value(f, f->outputs[o]);

                if (v->type.dtype != MIL_F16 || !mil_type_is_static(&v->type))
                    return ct_fail(c->why, "no buffer for '%s'", v->name);
            }
        }
    }
    return true;
}

static bool load(struct ct *c, const char *dir, struct ct_yaml *y)
{
    const char *e = typed_text(y, false, "embeddings");
    const char *h = typed_text(y, false, "lm_head");
    const char *f = typed_text(y, false, "ffn");
    const char *version = typed_text(y, true, "version");
    const char *prefix = typed_text(y, false, "model_prefix");

    c->context = typed_int(y, "context_length", 2048);
    c->batch = typed_int(y, "batch_size", 32);
    c->chunks = (int)typed_int(y, "num_chunks", 1);
    c->parts = typed_int(y, "split_lm_head", 8);
    c->window = typed_int(y, "sliding_window", 0);
    if (!c->window && prefix && !strncmp(prefix, "gemma3", 6) &&
        c->context > 512)
        c->window = 512;
    c->batched = true;
    if (!e || !h || !f)
        return ct_fail(c->why, "a path key is missing");
    if (!version || !strcmp(version, "0.1.1"))
        return ct_fail(c->why, "the version is no text, or an old one");
    return compiled(c, dir, e, c->embeddings) && compiled(c, dir, h, c->head) &&
           chunk_paths(c, dir, f) && ct_open_models(c) && check_buffers(c);
}

bool ct_load_swift(struct ct *c, const char *dir)
{
    struct ct_yaml *y;
    bool ok;

    memset(c, 0, sizeof(*c));
    y = ct_yaml_open(dir);
    if (!y)
        return ct_fail(c->why, "no meta.yaml");
    ok = load(c, dir, y);
    ct_yaml_close(y);
    return ok;
}

/* ---- tokenizer files ---- */

static struct js_doc *read_json(const char *dir, const char *name,
                                char why[600])
{
    char path[700];
    struct err e = ERR_INIT;
    struct js_doc *d;

    snprintf(path, sizeof(path), "%s/%s", dir, name);
    d = js_read_file(path, 100000000, &e);
    if (!d)
        ct_fail(why, "%s", e.text);
    return d;
}

bool ct_swift_assets(const char *dir, char why[600])
{
    struct js_doc *t = read_json(dir, "tokenizer.json", why);
    struct js_doc *k = t ? read_json(dir, "tokenizer_config.json", why) : NULL;
    struct js_doc *c = k ? read_json(dir, "config.json", why) : NULL;
    const struct js_node *eos = c ? js_get(js_root(c), "eos_token_id") : NULL;
    const char *s;
    int64_t id;
    bool ok = false;

    if (!c)
        ok = false;
    else if (!js_string(js_get(js_root(k), "chat_template"), &s))
        ct_fail(why, "chat_template is no string");
    else if (!js_integral(eos, &id) && !(eos && js_kind(eos) == JS_ARRAY &&
                                         js_integral(js_first(eos), &id)))
        ct_fail(why, "no eos_token_id at the top level");
    else
        ok = js_string(js_get(js_root(c), "model_type"), &s) ||
             ct_fail(why, "no model_type");
    js_free(t);
    js_free(k);
    js_free(c);
    return ok;
}

/* ---- prepare_hf.sh ---- */

/* grep "KEY:" | cut -d' ' -fN, all lines joined. */
static void cut(const char *dir, const char *key, int field, char out[200])
{
    char command[1000];
    size_t n;
    FILE *p;

    snprintf(command, sizeof(command),
             "grep '%s:' '%s/meta.yaml' | cut -d' ' -f%d", key, dir, field);
    p = popen(command, "r");
    n = p ? fread(out, 1, 199, p) : 0;
    if (p)
        pclose(p);
    while (n && out[n - 1] == '\n')
        n--;
    out[n] = '\0';
}

static bool shell_has(const char *dir, const char *prefix, const char *part,
                      const char *lut, const char *tail, char why[600])
{
    char path[900];
    bool bits = strcmp(lut, "none") != 0;

    snprintf(path, sizeof(path), "%.300s/%.100s_%s%s%.10s%s.mlmodelc", dir,
             prefix, part, bits ? "_lut" : "", bits ? lut : "", tail);
    if (ct_exists(path))
        return true;
    snprintf(path, sizeof(path), "%.300s/%.100s_%s%s%.10s%s.mlpackage", dir,
             prefix, part, bits ? "_lut" : "", bits ? lut : "", tail);
    return ct_exists(path) || ct_fail(why, "no '%s'", path);
}

bool ct_shell(const char *dir, char why[600])
{
    char prefix[200], chunks[200], lut[3][200], name[200];
    int n;

    cut(dir, "model_prefix", 6, prefix);
    cut(dir, "num_chunks", 6, chunks);
    cut(dir, "lut_embeddings", 6, lut[0]);
    cut(dir, "lut_ffn", 6, lut[1]);
    cut(dir, "lut_lmhead", 6, lut[2]);
    cut(dir, "name", 4, name);
    n = (int)strtol(chunks, NULL, 10);
    if (!name[0] || strchr(name, '\n') || n < 1)
        return ct_fail(why, "name '%s', num_chunks '%s'", name, chunks);
    for (int i = 1; i <= n; i++) {
        char tail[40];

        snprintf(tail, sizeof(tail), "_chunk_%02dof%02d", i, n);
        if (!shell_has(dir, prefix, "FFN_PF", lut[1], tail, why))
            return false;
    }
    return shell_has(dir, prefix, "embeddings", lut[0], "", why) &&
           shell_has(dir, prefix, "lm_head", lut[2], "", why);
}
