/*
 * chat.py and chat_full.py: names, defaults, wildcards.
 */
#include <dirent.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "contract.h"

/* int(): the whole text is a number. */
static bool to_int(const char *s, int64_t *out)
{
    char *end;

    *out = strtoll(s, &end, 10);
    return *s && !*end;
}

static bool need_int(struct ct *c, struct ct_yaml *y, const char *key,
                     int64_t *out)
{
    const char *s = ct_yaml_get(y, false, key, NULL);

    return (s && to_int(s, out)) ||
           ct_fail(c->why, "KeyError or ValueError: %s", key);
}

static int64_t or_int(struct ct_yaml *y, const char *key, int64_t otherwise)
{
    const char *s = ct_yaml_get(y, false, key, NULL);
    int64_t v;

    return s && to_int(s, &v) ? v : otherwise;
}

static bool is_true(struct ct_yaml *y, const char *key)
{
    const char *s = ct_yaml_get(y, false, key, NULL);

    return s && !strcmp(s, "true");
}

static void suffix(struct ct_yaml *y, const char *key, char out[16])
{
    const char *s = ct_yaml_get(y, false, key, NULL);

    out[0] = '\0';
    if (s && strcmp(s, "none") != 0)
        snprintf(out, 16, "_lut%.6s", s);
}

/* A name without its extension. */
static void stem_of(const char *name, char out[300])
{
    size_t n;

    snprintf(out, 300, "%s", name);
    n = strlen(out);
    if (n > 9 && !strcmp(out + n - 9, ".mlmodelc"))
        out[n - 9] = '\0';
    else if (n > 10 && !strcmp(out + n - 10, ".mlpackage"))
        out[n - 10] = '\0';
}

/* A compiled model is preferred, a package beside it taken otherwise. */
static bool resolve(struct ct *c, const char *dir, const char *stem,
                    char out[700])
{
    snprintf(out, 700, "%s/%s.mlmodelc", dir, stem);
    if (ct_exists(out))
        return true;
    snprintf(out, 700, "%s/%s.mlpackage", dir, stem);
    return ct_exists(out) || ct_fail(c->why, "no model '%s'", stem);
}

/* FFN[^/]*_chunk_<d>of<d>: the place of the number, or NULL. */
static const char *match_chunk(const char *stem, int *total)
{
    const char *ffn = strstr(stem, "FFN"), *p = ffn;
    const char *at = NULL;

    while (p && (p = strstr(p, "_chunk_")) != NULL) {
        int a, b, n = 0;

        if (sscanf(p, "_chunk_%dof%d%n", &a, &b, &n) == 2 && n) {
            at = p;
            *total = b;
        }
        p++;
    }
    return at;
}

static int by_text(const void *a, const void *b)
{
    return strcmp(a, b);
}

/* All files of the stem with a wildcard for the number, same extension. */
static bool find_chunks(struct ct *c, const char *dir, const char *stem)
{
    int total = 0, n = 0;
    const char *at = match_chunk(stem, &total);
    const char *ext;
    struct dirent *d;
    char first[700];
    DIR *folder;

    if (!at)
        return ct_fail(c->why,
                       "'%s' is no chunk: taken for a model without "
                       "functions",
                       stem);
    if (!resolve(c, dir, stem, first))
        return false;
    ext = strrchr(first, '.');
    folder = opendir(dir);
    while (folder && (d = readdir(folder)) != NULL) {
        const char *dot = strrchr(d->d_name, '.');

        if (dot && !strcmp(dot, ext) &&
            !strncmp(d->d_name, stem, (size_t)(at - stem) + 7) &&
            n < CT_MAX_CHUNKS)
            snprintf(c->ffn[n++], 700, "%s/%s", dir, d->d_name);
    }
    if (folder)
        closedir(folder);
    qsort(c->ffn, (size_t)n, sizeof(c->ffn[0]), by_text);
    c->chunks = n;
    return n == total ||
           ct_fail(c->why, "%d chunk files, %d by their names", n, total);
}

static bool load_numbers(struct ct *c, struct ct_yaml *y, bool need_luts)
{
    static const char *const luts[] = { "lut_embeddings", "lut_ffn",
                                        "lut_lmhead" };
    const char *prefix = ct_yaml_get(y, false, "model_prefix", NULL);
    int64_t chunks;

    if (!need_int(c, y, "context_length", &c->context) ||
        !need_int(c, y, "batch_size", &c->batch) ||
        !need_int(c, y, "num_chunks", &chunks))
        return false;
    for (int i = 0; need_luts && i < 3; i++)
        if (!ct_yaml_get(y, false, luts[i], NULL))
            return ct_fail(c->why, "KeyError: %s", luts[i]);
    c->parts = or_int(y, "split_lm_head", or_int(y, "num_logits", 8));
    c->window = or_int(y, "sliding_window",
                       prefix && !strncmp(prefix, "gemma3", 6) ? 512 : 0);
    c->batched = is_true(y, "prefill_dynamic_slice") ||
                 is_true(y, "update_mask_prefill");
    return true;
}

/* The values of a package's metadata go through int(). */
static bool check_metadata(struct ct *c)
{
    static const char *const keys[] = {
        "com.anemll.context_length", "com.anemll.state_length",
        "com.anemll.batch_size",     "com.anemll.lut_bits",
        "com.anemll.num_chunks",     "com.anemll.vocab_size",
    };

    for (int i = 0; i < c->chunks + 2; i++)
        for (size_t k = 0; k < sizeof(keys) / sizeof(keys[0]); k++) {
            const char *s =
                mil_program_metadata(pkg_program(c->pkg[i]), keys[k]);
            int64_t v;

            if (s && !to_int(s, &v))
                return ct_fail(c->why, "ValueError: %s '%s'", keys[k], s);
        }
    return true;
}

static bool load(struct ct *c, const char *dir, struct ct_yaml *y, bool full)
{
    const char *prefix = ct_yaml_get(y, false, "model_prefix", NULL);
    const char *e = ct_yaml_get(y, false, "embeddings", NULL);
    const char *h = ct_yaml_get(y, false, "lm_head", NULL);
    const char *f = ct_yaml_get(y, false, "ffn", NULL);
    char lut[3][16], name[300], stem[300];

    if (!prefix)
        prefix = "llama";
    suffix(y, "lut_embeddings", lut[0]);
    suffix(y, "lut_ffn", lut[1]);
    suffix(y, "lut_lmhead", lut[2]);
    snprintf(name, sizeof(name), "%.200s_embeddings%s", prefix, lut[0]);
    stem_of(e && !full ? e : name, stem);
    if (!resolve(c, dir, stem, c->embeddings))
        return false;
    snprintf(name, sizeof(name), "%.200s_lm_head%s", prefix, lut[2]);
    stem_of(h && !full ? h : name, stem);
    if (!resolve(c, dir, stem, c->head))
        return false;
    snprintf(name, sizeof(name), "%.200s_FFN_PF%s", prefix, lut[1]);
    stem_of(f && !full ? f : name, stem);
    if (!strstr(stem, "_chunk_")) {
        int64_t n = or_int(y, "num_chunks", 1);

        snprintf(name, sizeof(name), "%.250s_chunk_01of%02" PRId64, stem, n);
        memcpy(stem, name, sizeof(stem));
    }
    return find_chunks(c, dir, stem) && ct_open_models(c) && check_metadata(c);
}

static bool load_python(struct ct *c, const char *dir, bool full)
{
    struct ct_yaml *y;
    bool ok;

    memset(c, 0, sizeof(*c));
    y = ct_yaml_open(dir);
    if (!y)
        return ct_fail(c->why, "no meta.yaml");
    ok = load_numbers(c, y, true) && load(c, dir, y, full);
    ct_yaml_close(y);
    return ok;
}

bool ct_load_python(struct ct *c, const char *dir)
{
    return load_python(c, dir, false);
}

bool ct_load_python_full(struct ct *c, const char *dir)
{
    return load_python(c, dir, true);
}
