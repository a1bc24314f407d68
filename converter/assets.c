/*
 * Tokenizer and configuration files of a package: found, judged, and what
 * follows from them (end tokens, classes); see assets.h. What is written is
 * in assets_write.c.
 */
#include "converter/assets.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "converter/assets_priv.h"
#include "converter/base/io.h"
#include "converter/base/num.h"
#include "models/models.h"

/* Members spliced into the texts, and a tokenizer_config.json made anew. */
#define SPLICED_BYTES 2048

static const struct assets_file files[] = {
    { "tokenizer.json", false },
    { "tokenizer.model", false },
    { "vocab.json", false },
    { "merges.txt", false },
    { "added_tokens.json", true },
    { "special_tokens_map.json", true },
    { "tokenizer_config_search.json", true },
    { "preprocessor_config.json", true },
    { "generation_config.json", true },
    { "chat_template.json", true },
    { ASSETS_JINJA, false },
};
#define N_FILES (sizeof(files) / sizeof(files[0]))

const struct assets_file *assets_file_at(size_t i)
{
    return i < N_FILES ? &files[i] : NULL;
}

bool assets_name(const char *name)
{
    for (size_t i = 0; i < N_FILES; i++)
        if (!strcmp(files[i].name, name))
            return true;
    return !strcmp(name, "config.json") ||
           !strcmp(name, "tokenizer_config.json") ||
           !strcmp(name, ASSETS_FOLDER);
}

static int has_file(const struct ckpt *c, const char *name, bool *yes,
                    struct err *e)
{
    char *path = io_join(c->dir, name, e);

    if (!path)
        return -1;
    *yes = io_exists(path);
    mem_free(path);
    return 0;
}

int assets_read_json(const struct ckpt *c, const char *name,
                     struct js_doc **out, struct err *e)
{
    char *path = io_join(c->dir, name, e);
    int rc = 0;

    if (!path)
        return -1;
    if (io_exists(path)) {
        /* what is written anew is compared with all of the old text */
        *out =
            strcmp(name, "tokenizer.json") != 0
                ? js_read_file(path, ASSETS_MAX_JSON, e)
                : js_read_file_hollow(path, ASSETS_MAX_JSON, ASSETS_UNREAD, e);
        rc = *out ? 0 : -1;
        if (!rc && js_kind(js_root(*out)) != JS_OBJECT)
            rc = err_set(e, ERR_INPUT, "'%s' is %s, an object is needed", path,
                         js_kind_name(js_kind(js_root(*out))));
    }
    mem_free(path);
    return rc;
}

/* ---- which files ---- */

/* Complete sets of tokenizer files, by the family's class; the first is what
 * Swift reads, the others serve Python alone. */
static const struct {
    const char *class;
    const char *sets[2][3];
} complete[] = {
    { "Qwen2Tokenizer",
      { { "tokenizer.json", NULL, NULL },
        { "vocab.json", "merges.txt", NULL } } },
    { "LlamaTokenizer",
      { { "tokenizer.json", NULL, NULL }, { "tokenizer.model", NULL, NULL } } },
    { "GemmaTokenizer",
      { { "tokenizer.json", NULL, NULL }, { "tokenizer.model", NULL, NULL } } },
};
#define N_COMPLETE (sizeof(complete) / sizeof(complete[0]))

static int set_there(const struct ckpt *c, const char *const set[3], bool *all,
                     struct err *e)
{
    *all = true;
    for (int i = 0; i < 3 && set[i] && *all; i++)
        if (has_file(c, set[i], all, e))
            return -1;
    return 0;
}

/* The first file that only a checkpoint with a tokenizer has. */
static int tokenizer_sign(const struct ckpt *c, const char **sign,
                          struct err *e)
{
    static const char *const signs[] = { "tokenizer_config.json",
                                         "tokenizer.json",
                                         "tokenizer.model",
                                         "special_tokens_map.json",
                                         "added_tokens.json",
                                         "vocab.json",
                                         "merges.txt",
                                         ASSETS_JINJA };

    *sign = NULL;
    for (size_t i = 0; i < sizeof(signs) / sizeof(signs[0]); i++) {
        bool yes;

        if (has_file(c, signs[i], &yes, e))
            return -1;
        if (yes) {
            *sign = signs[i];
            return 0;
        }
    }
    return 0;
}

static int check_complete(struct assets *a, struct err *e)
{
    const char *class = a->ckpt->hp.arch->tokenizer_class, *sign;
    const char *const(*sets)[3] = complete[0].sets;
    bool yes[2];

    for (size_t i = 0; i < N_COMPLETE; i++)
        if (!strcmp(complete[i].class, class))
            sets = complete[i].sets;
    if (tokenizer_sign(a->ckpt, &sign, e) ||
        set_there(a->ckpt, sets[0], &yes[0], e) ||
        set_there(a->ckpt, sets[1], &yes[1], e))
        return -1;
    a->has_tokenizer = yes[0];
    if (!sign)
        buf_puts(a->notes, "the checkpoint has no tokenizer: the package runs "
                           "on token ids only\n");
    else if (!yes[0] && !yes[1])
        return err_set(e, ERR_INPUT,
                       "'%s' has %s but no tokenizer.json (nor %s%s%s): "
                       "download the missing file, or write all of them with "
                       "transformers: AutoTokenizer.from_pretrained(MODEL)"
                       ".save_pretrained(DIR)",
                       a->ckpt->dir, sign, sets[1][0],
                       sets[1][1] ? " with " : "",
                       sets[1][1] ? sets[1][1] : "");
    else if (!yes[0])
        buf_puts(a->notes, "the checkpoint has no tokenizer.json: Python "
                           "runtimes load the package, Swift ones do not\n");
    return 0;
}

/* ---- tokens ---- */

static const struct js_node *tokenizer_root(const struct assets *a)
{
    return a->tokenizer ? js_root(a->tokenizer) : NULL;
}

static const struct js_node *vocab_node(const struct assets *a)
{
    return js_get(js_get(tokenizer_root(a), "model"), "vocab");
}

static const struct js_node *config_member(const struct assets *a,
                                           const char *key)
{
    return a->tokenizer_config ? js_get(js_root(a->tokenizer_config), key)
                               : NULL;
}

static int check_tokenizer(const struct assets *a, struct err *e)
{
    const struct js_node *vocab = vocab_node(a);

    if (!a->tokenizer || js_count(vocab))
        return 0;
    return err_set(e, ERR_INPUT,
                   "'%s/tokenizer.json' holds no vocabulary (model.vocab)",
                   a->ckpt->dir);
}

/* An added token, from one of the three places that list them. */
struct added {
    int64_t id;
    const char *text, *where;
};
struct added_list {
    struct added *v;
    size_t n, cap;
    struct js_doc *extra; /* added_tokens.json */
};

static int add_added(struct added_list *l, int64_t id, const char *text,
                     const char *where, struct err *e)
{
    if (mem_grow((void **)&l->v, &l->cap, l->n, sizeof(*l->v), e))
        return -1;
    l->v[l->n++] = (struct added){ id, text, where };
    return 0;
}

static int collect_added(const struct assets *a, struct added_list *l,
                         struct err *e)
{
    const struct js_node *n;
    const char *s;
    int64_t id;

    for (n = js_first(js_get(tokenizer_root(a), "added_tokens")); n;
         n = js_next(n))
        if (js_string(js_get(n, "content"), &s) &&
            js_integral(js_get(n, "id"), &id) &&
            add_added(l, id, s, "tokenizer.json", e))
            return -1;
    for (n = js_first(config_member(a, "added_tokens_decoder")); n;
         n = js_next(n))
        if (js_string(js_get(n, "content"), &s) && js_key(n) &&
            num_parse_i64(js_key(n), strlen(js_key(n)), &id) &&
            add_added(l, id, s, "tokenizer_config.json", e))
            return -1;
    if (assets_read_json(a->ckpt, "added_tokens.json", &l->extra, e))
        return -1;
    for (n = l->extra ? js_first(js_root(l->extra)) : NULL; n; n = js_next(n))
        if (js_integral(n, &id) &&
            add_added(l, id, js_key(n), "added_tokens.json", e))
            return -1;
    return 0;
}

static int by_id(const void *pa, const void *pb)
{
    const struct added *a = pa, *b = pb;

    if (a->id != b->id)
        return a->id < b->id ? -1 : 1;
    return strcmp(a->text, b->text);
}

static int by_text(const void *pa, const void *pb)
{
    const struct added *a = pa, *b = pb;
    int c = strcmp(a->text, b->text);

    return c ? c : (a->id > b->id) - (a->id < b->id);
}

static void sort_added(struct added_list *l,
                       int (*compare)(const void *, const void *))
{
    if (l->n > 1)
        qsort(l->v, l->n, sizeof(*l->v), compare);
}

/* The places may repeat each other and may not differ. Leaves the list sorted
 * by text. */
static int check_added(struct added_list *l, struct err *e)
{
    sort_added(l, by_id);
    for (size_t i = 1; i < l->n; i++)
        if (l->v[i].id == l->v[i - 1].id &&
            strcmp(l->v[i].text, l->v[i - 1].text) != 0)
            return err_set(e, ERR_INPUT,
                           "added token %" PRId64 " is '%s' in %s and '%s' in "
                           "%s",
                           l->v[i].id, l->v[i - 1].text, l->v[i - 1].where,
                           l->v[i].text, l->v[i].where);
    sort_added(l, by_text);
    for (size_t i = 1; i < l->n; i++)
        if (l->v[i].id != l->v[i - 1].id &&
            !strcmp(l->v[i].text, l->v[i - 1].text))
            return err_set(e, ERR_INPUT,
                           "added token '%s' has the id %" PRId64
                           " in %s and %" PRId64 " in %s",
                           l->v[i].text, l->v[i - 1].id, l->v[i - 1].where,
                           l->v[i].id, l->v[i].where);
    return 0;
}

/* The id of a token's text, -1 if no file knows it. */
static int64_t token_id(const struct assets *a, const struct added_list *l,
                        const char *text)
{
    const struct added key = { 0, text, NULL };
    int64_t id;

    for (size_t lo = 0, hi = l->n; lo < hi;) {
        size_t mid = lo + (hi - lo) / 2;
        int c = strcmp(key.text, l->v[mid].text);

        if (!c)
            return l->v[mid].id;
        if (c < 0)
            hi = mid;
        else
            lo = mid + 1;
    }
    return js_integral(js_get(vocab_node(a), text), &id) ? id : -1;
}

/* The text of an id among the added tokens, else in the vocabulary. */
static const char *id_text(const struct assets *a, const struct added_list *l,
                           int64_t id)
{
    const struct js_node *n;
    int64_t v;

    for (size_t i = 0; i < l->n; i++)
        if (l->v[i].id == id)
            return l->v[i].text;
    for (n = js_first(vocab_node(a)); n; n = js_next(n))
        if (js_integral(n, &v) && v == id)
            return js_key(n);
    return NULL;
}

/* ---- end tokens ---- */

static bool has_stop(const struct assets *a, int64_t id)
{
    for (size_t i = 0; i < a->n_stops; i++)
        if (a->stops[i] == id)
            return true;
    return false;
}

static int add_stop(struct assets *a, int64_t id, const char *where,
                    struct err *e)
{
    if (id < 0 || has_stop(a, id))
        return 0;
    if (id >= a->ckpt->hp.vocab)
        return err_set(e, ERR_INPUT,
                       "%s: end token %" PRId64 " is beyond the vocabulary of "
                       "%" PRId64 " rows",
                       where, id, a->ckpt->hp.vocab);
    if (a->n_stops == ASSETS_MAX_STOPS)
        return err_set(e, ERR_INPUT,
                       "%s: more than %d end tokens in all sources", where,
                       ASSETS_MAX_STOPS);
    a->stops[a->n_stops++] = id;
    return 0;
}

/* eos_token_id: an integer, an array of them, null or absent. */
static int add_stops(struct assets *a, const struct js_node *n,
                     const char *where, struct err *e)
{
    int64_t id;

    if (!n || js_kind(n) == JS_NULL)
        return 0;
    if (js_integral(n, &id))
        return add_stop(a, id, where, e);
    if (js_kind(n) != JS_ARRAY)
        return err_set(e, ERR_INPUT,
                       "%s: eos_token_id is %s, an integer or a list of them "
                       "is allowed",
                       where, js_kind_name(js_kind(n)));
    for (n = js_first(n); n; n = js_next(n)) {
        if (!js_integral(n, &id))
            return err_set(e, ERR_INPUT,
                           "%s: eos_token_id holds %s, integers are allowed",
                           where, js_kind_name(js_kind(n)));
        if (add_stop(a, id, where, e))
            return -1;
    }
    return 0;
}

/* "eos_token": a string or an object with "content". */
static const char *token_text(const struct js_node *n)
{
    const char *s = NULL;

    if (n && js_kind(n) == JS_OBJECT)
        n = js_get(n, "content");
    return js_string(n, &s) ? s : NULL;
}

static int unite_stops(struct assets *a, const struct added_list *l,
                       struct err *e)
{
    const struct js_node *config = js_root(a->ckpt->config);
    const struct js_doc *generation = a->ckpt->generation;
    const char *eos = token_text(config_member(a, "eos_token"));
    int64_t id;

    if (add_stops(a, js_get(config, "eos_token_id"), "config.json", e))
        return -1;
    a->n_config_stops = a->n_stops;
    if (add_stops(a, js_get(js_get(config, "text_config"), "eos_token_id"),
                  "config.json, text_config", e) ||
        (generation && add_stops(a, js_get(js_root(generation), "eos_token_id"),
                                 "generation_config.json", e)))
        return -1;
    id = eos ? token_id(a, l, eos) : -1;
    if (eos && id < 0)
        buf_printf(a->notes,
                   "eos_token '%s' of tokenizer_config.json is no token of the "
                   "tokenizer\n",
                   eos);
    if (add_stop(a, id, "tokenizer_config.json", e))
        return -1;
    if (!a->n_stops)
        buf_puts(a->notes, "the checkpoint names no end token: generation "
                           "will not stop by itself\n");
    return 0;
}

/* An end marker that the template writes must stop generation. */
static void check_turn_end(struct assets *a, const struct added_list *l)
{
    static const char *const ends[] = { "<|im_end|>", "<end_of_turn>",
                                        "<|eot_id|>", "<turn|>",
                                        "<|end|>",    "</s>" };

    for (size_t i = 0; a->template && i < sizeof(ends) / sizeof(ends[0]); i++) {
        int64_t id = token_id(a, l, ends[i]);

        if (id >= 0 && strstr(a->template, ends[i]) && !has_stop(a, id))
            buf_printf(a->notes,
                       "warning: the chat template ends turns with '%s' "
                       "(%" PRId64 "), which is no end token of the "
                       "checkpoint\n",
                       ends[i], id);
    }
}

/* ---- ids against the vocabulary ---- */

static int check_bos(const struct assets *a, const struct added_list *l,
                     struct err *e)
{
    const char *bos = token_text(config_member(a, "bos_token"));
    int64_t id = a->ckpt->hp.bos;

    if (id < a->ckpt->hp.vocab && bos)
        id = token_id(a, l, bos);
    if (id < a->ckpt->hp.vocab)
        return 0;
    return err_set(e, ERR_INPUT,
                   "the begin token %" PRId64 " is beyond the vocabulary of "
                   "%" PRId64 " rows",
                   id, a->ckpt->hp.vocab);
}

/* Ids beyond the rows happen in good models; they are told, and refused only
 * where a prompt cannot do without them. */
static int check_ids(struct assets *a, const struct added_list *l,
                     struct err *e)
{
    int64_t id, vocab = a->ckpt->hp.vocab, beyond = 0, first = INT64_MAX;
    const struct js_node *n;

    for (n = js_first(vocab_node(a)); n; n = js_next(n))
        if (js_integral(n, &id) && id >= vocab) {
            beyond++;
            first = id < first ? id : first;
        }
    for (size_t i = 0; i < l->n; i++) {
        const struct added *t = &l->v[i];

        if (t->id < vocab || (i && l->v[i - 1].id == t->id))
            continue;
        if (t->text[0] && a->template && strstr(a->template, t->text))
            return err_set(e, ERR_INPUT,
                           "the chat template writes '%s', whose id %" PRId64
                           " is beyond the vocabulary of %" PRId64 " rows",
                           t->text, t->id, vocab);
        if (js_get(vocab_node(a), t->text)) /* counted above */
            continue;
        beyond++;
        first = t->id < first ? t->id : first;
    }
    if (beyond)
        buf_printf(a->notes,
                   "the tokenizer has %" PRId64 " ids beyond the vocabulary "
                   "of %" PRId64 " rows, the first is %" PRId64 "\n",
                   beyond, vocab, first);
    return check_bos(a, l, e);
}

/* ---- classes ---- */

/* Classes of the Swift tokenizer library, with or without "Fast". */
bool assets_swift_knows(const char *cls)
{
    static const char *const known[] = {
        "BertTokenizer",   "CodeGenTokenizer", "CodeLlamaTokenizer",
        "CohereTokenizer", "FalconTokenizer",  "GemmaTokenizer",
        "GPT2Tokenizer",   "LlamaTokenizer",   "PreTrainedTokenizer",
        "Qwen2Tokenizer",  "T5Tokenizer",      "WhisperTokenizer",
    };
    size_t n = strlen(cls);

    if (n > 4 && !strcmp(cls + n - 4, "Fast"))
        n -= 4;
    for (size_t i = 0; i < sizeof(known) / sizeof(known[0]); i++)
        if (strlen(known[i]) == n && !memcmp(known[i], cls, n))
            return true;
    return false;
}

static bool has_type(const struct js_node *n, const char *type)
{
    const char *s;

    if (js_string(js_get(n, "type"), &s) && !strcmp(s, type))
        return true;
    for (n = js_first(js_get(n, "pretokenizers")); n; n = js_next(n))
        if (js_string(js_get(n, "type"), &s) && !strcmp(s, type))
            return true;
    return false;
}

/* The class that both config files will name. The family's LlamaTokenizer
 * makes Swift put a space in front, as SentencePiece does; byte-level
 * tokenizers of the same family (Llama 3) must not get it. */
static int choose_class(struct assets *a, struct err *e)
{
    const char *cls, *chosen = a->ckpt->hp.arch->tokenizer_class;

    if (strcmp(chosen, "Qwen2Tokenizer") != 0 &&
        has_type(js_get(tokenizer_root(a), "pre_tokenizer"), "ByteLevel"))
        chosen = "PreTrainedTokenizerFast";
    if (js_string(js_get(js_root(a->ckpt->config), "tokenizer_class"), &cls) &&
        assets_swift_knows(cls))
        chosen = cls;
    if (js_string(config_member(a, "tokenizer_class"), &cls) &&
        assets_swift_knows(cls))
        chosen = cls;
    a->class = mem_strdup(chosen, e);
    return a->class ? 0 : -1;
}

/* ---- opening ---- */

/* For a tokenizer_config.json that is made because there is none. */
static int special_texts(struct assets *a, const struct added_list *l,
                         struct err *e)
{
    const char *eos = NULL, *bos = NULL;

    if (a->tokenizer_config || !a->tokenizer)
        return 0;
    if (a->n_stops)
        eos = id_text(a, l, a->stops[0]);
    if (a->ckpt->hp.bos >= 0)
        bos = id_text(a, l, a->ckpt->hp.bos);
    if (eos && !(a->eos = mem_strdup(eos, e)))
        return -1;
    if (bos && !(a->bos = mem_strdup(bos, e)))
        return -1;
    return 0;
}

/* Small JSON files that are only copied must be sound all the same. */
static int check_json(const struct assets *a, struct err *e)
{
    for (size_t i = 0; i < N_FILES; i++) {
        struct js_doc *d = NULL;
        int rc;

        if (!files[i].json)
            continue;
        rc = assets_read_json(a->ckpt, files[i].name, &d, e);
        js_free(d);
        if (rc)
            return -1;
    }
    return 0;
}

static int check_tokens(struct assets *a, struct err *e)
{
    struct added_list l = { 0 };
    int rc = -1;

    if (!collect_added(a, &l, e) && !check_added(&l, e) &&
        !unite_stops(a, &l, e) && !check_ids(a, &l, e) &&
        !special_texts(a, &l, e)) {
        check_turn_end(a, &l);
        rc = 0;
    }
    js_free(l.extra);
    mem_free(l.v);
    return rc;
}

static void tell(struct assets *a)
{
    if (a->has_tokenizer && !a->template)
        buf_puts(a->notes, "the checkpoint has no chat template\n");
    if (a->has_tokenizer && !a->tokenizer_config)
        buf_puts(a->notes, "the checkpoint has no tokenizer_config.json: the "
                           "package gets a small one\n");
    if (config_member(a, "auto_map"))
        buf_puts(a->notes, "the tokenizer wants code of its own (auto_map), "
                           "which is not copied\n");
}

struct assets *assets_open(const struct ckpt *c, struct buf *notes,
                           struct err *e)
{
    struct assets *a = mem_zalloc(1, sizeof(*a), e);

    if (!a)
        return NULL;
    a->ckpt = c;
    a->notes = notes;
    if (check_complete(a, e) || check_json(a, e) ||
        assets_read_json(c, "tokenizer_config.json", &a->tokenizer_config, e) ||
        assets_choose_template(a, e) ||
        assets_read_json(c, "tokenizer.json", &a->tokenizer, e) ||
        check_tokenizer(a, e) || check_tokens(a, e) || choose_class(a, e)) {
        assets_close(a);
        return NULL;
    }
    tell(a);
    /* Many times its text; what is needed of it is taken. */
    js_free(a->tokenizer);
    a->tokenizer = NULL;
    return a;
}

void assets_close(struct assets *a)
{
    if (!a)
        return;
    js_free(a->tokenizer);
    js_free(a->tokenizer_config);
    for (size_t i = 0; i < a->n_named; i++) {
        mem_free(a->named[i].name);
        mem_free(a->named[i].text);
    }
    mem_free(a->named);
    mem_free(a->template);
    mem_free(a->eos);
    mem_free(a->bos);
    mem_free(a->class);
    mem_free(a);
}

/* The size of a file; 0 for none that can be opened. */
static int add_size(const char *dir, const char *name, unsigned times,
                    uint64_t *bytes, struct err *e)
{
    char *path = io_join(dir, name, e);
    struct err ignored = ERR_INIT;
    struct io_file f = IO_FILE_INIT;

    if (!path)
        return -1;
    if (io_exists(path) && !io_open_input(&f, path, &ignored)) {
        *bytes += times * f.size;
        io_close(&f);
    }
    mem_free(path);
    return 0;
}

static int add_folder(const struct ckpt *c, uint64_t *bytes, struct err *e)
{
    char *dir = io_join(c->dir, ASSETS_FOLDER, e);
    char **names = NULL;
    size_t n = 0;
    int rc = dir ? 0 : -1;

    if (dir && io_is_dir(dir))
        rc = io_list(dir, &names, &n, e);
    for (size_t i = 0; !rc && i < n; i++)
        rc = add_size(dir, names[i], 1, bytes, e);
    io_list_free(names, n);
    mem_free(dir);
    return rc;
}

int assets_measure(const struct ckpt *c, uint64_t *bytes, uint64_t *tokenizer,
                   struct err *e)
{
    *bytes = SPLICED_BYTES;
    *tokenizer = 0;
    if (add_size(c->dir, "tokenizer.json", 1, tokenizer, e))
        return -1;
    for (size_t i = 0; i < N_FILES; i++)
        if (add_size(c->dir, files[i].name, 1, bytes, e))
            return -1;
    /* A template file is spliced into the tokenizer's config too. */
    if (add_size(c->dir, ASSETS_JINJA, 1, bytes, e) ||
        add_size(c->dir, "config.json", 1, bytes, e) ||
        add_size(c->dir, "tokenizer_config.json", 1, bytes, e))
        return -1;
    return add_folder(c, bytes, e);
}

size_t assets_stop_tokens(const struct assets *a, const int64_t **ids)
{
    *ids = a->stops;
    return a->n_stops;
}

bool assets_sampling(const struct assets *a, struct assets_sampling *out)
{
    const struct js_node *g =
        a->ckpt->generation ? js_root(a->ckpt->generation) : NULL;

    out->do_sample = false; /* what absent means to transformers */
    (void)js_bool(js_get(g, "do_sample"), &out->do_sample);
    return js_double(js_get(g, "temperature"), &out->temperature) &&
           js_double(js_get(g, "top_p"), &out->top_p) &&
           js_integral(js_get(g, "top_k"), &out->top_k) &&
           out->temperature > 0 && out->temperature <= 100 && out->top_p > 0 &&
           out->top_p <= 1 && out->top_k >= 0 && out->top_k <= INT32_MAX;
}
