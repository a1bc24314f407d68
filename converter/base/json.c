/*
 * JSON documents: the scan's nodes tied to the tree that cJSON builds.
 *
 * cJSON decodes strings and keys; kinds, numbers and positions come from
 * the scan. What cJSON parses is a copy in which each number is replaced by
 * a 0 and blanks: it would cut long ones, and round or saturate others.
 */
#include "converter/base/json.h"

#include <math.h>
#include <pthread.h>
#include <string.h>
#include <time.h>

#include "converter/base/hash.h"
#include "converter/base/io.h"
#include "converter/base/json_priv.h"
#include "converter/base/num.h"

/* Objects with more members than this get a hash table. */
#define SMALL_OBJECT 12

struct slot {
    uint32_t hash, node; /* node 0: free */
};

struct table {
    struct slot *slots; /* a power of two, at most half full */
    uint32_t mask;
};

struct js_doc {
    char *text;
    size_t len;
    struct js_node *nodes;
    size_t count;
    struct table *tables; /* [0] is not used */
    size_t table_count, table_cap;
    uint64_t seed; /* so that no file can be made to collide */
    struct arena cjson;
};

/*
 * cJSON allocates through process-wide hooks without a context. While a
 * document is parsed they take from its arena, which is found through a
 * thread-local pointer; at any other time they are malloc and free.
 */
static _Thread_local struct arena *hook_arena;
static _Thread_local struct err hook_err; /* why it failed, if it did */
static pthread_once_t hooks_once = PTHREAD_ONCE_INIT;
/* cJSON keeps the position of its last error in a global. */
static pthread_mutex_t cjson_lock = PTHREAD_MUTEX_INITIALIZER;

static void *hook_alloc(size_t n)
{
    err_reset(&hook_err);
    if (hook_arena != NULL)
        return arena_alloc(hook_arena, n, 1, &hook_err);
    return mem_alloc(n, 1, &hook_err);
}

static void hook_free(void *p)
{
    if (hook_arena == NULL)
        mem_free(p);
}

static void set_hooks(void)
{
    cJSON_Hooks hooks = { hook_alloc, hook_free };

    cJSON_InitHooks(&hooks);
}

static const struct js_doc *doc_of(const struct js_node *n)
{
    return (n - n->self)->u.doc;
}

/* cJSON's tree of the text; NULL only when memory is out, since the scan is
 * stricter than cJSON. */
static cJSON *build_tree(struct js_doc *d, struct err *e)
{
    char *copy = mem_alloc(d->len + 1, 1, e);
    cJSON *root;

    if (copy == NULL)
        return NULL;
    memcpy(copy, d->text, d->len + 1);
    for (size_t i = 1; i < d->count; i++) {
        const struct js_node *n = &d->nodes[i];

        if (js_kind(n) == JS_ARRAY && n->info & JS_INFO_HOLLOW)
            memset(copy + n->begin + 1, ' ', n->end - n->begin - 2);
        if (js_kind(n) != JS_NUMBER)
            continue;
        memset(copy + n->begin, ' ', n->end - n->begin);
        copy[n->begin] = '0';
    }
    pthread_once(&hooks_once, set_hooks);
    pthread_mutex_lock(&cjson_lock);
    hook_arena = &d->cjson;
    root = cJSON_ParseWithLength(copy, d->len);
    hook_arena = NULL;
    pthread_mutex_unlock(&cjson_lock);
    mem_free(copy);
    if (root == NULL)
        err_set(e, ERR_NOMEM, "out of memory: a JSON text of %zu bytes",
                d->len);
    return root;
}

/* Gives each node its cJSON item: both stand in document order. */
static int tie_items(struct js_doc *d, cJSON *root, struct err *e)
{
    d->nodes[1].u.item = root;
    for (size_t i = 1; i < d->count; i++) {
        struct js_node *n = &d->nodes[i];

        if (n->u.item == NULL)
            return js_error_at(d->text, n->begin, e,
                               "two readings of the JSON text disagree");
        if (n->count > 0)
            d->nodes[i + 1].u.item = n->u.item->child;
        if (n->next != 0)
            d->nodes[n->next].u.item = n->u.item->next;
    }
    return 0;
}

static int key_twice(const struct js_doc *d, const struct js_node *n,
                     struct err *e)
{
    return js_error_at(d->text, n->begin, e,
                       "the key '%.200s' stands twice in one object",
                       n->u.item->string);
}

static uint32_t key_hash(const struct js_doc *d, const char *key)
{
    return (uint32_t)hash_short(key, strlen(key), d->seed);
}

/* The slot that holds `key`, or the free one where it would go. */
static struct slot *find_slot(const struct js_doc *d, const struct table *t,
                              uint32_t hash, const char *key)
{
    uint32_t i = hash & t->mask;

    while (t->slots[i].node != 0) {
        if (t->slots[i].hash == hash &&
            strcmp(d->nodes[t->slots[i].node].u.item->string, key) == 0)
            break;
        i = (i + 1) & t->mask;
    }
    return &t->slots[i];
}

static int index_large(struct js_doc *d, struct js_node *object, struct err *e)
{
    struct table t = { NULL, 0 };
    void *items = d->tables;
    const struct js_node *m;
    size_t size = 32;

    while (size < (size_t)object->count * 2)
        size *= 2;
    if (mem_grow(&items, &d->table_cap, d->table_count, sizeof t, e))
        return -1;
    d->tables = items;
    t.slots = mem_zalloc(size, sizeof *t.slots, e);
    if (t.slots == NULL)
        return -1;
    t.mask = (uint32_t)(size - 1);
    object->info |= (uint32_t)d->table_count << JS_INFO_SHIFT;
    d->tables[d->table_count++] = t;
    for (m = js_first(object); m != NULL; m = js_next(m)) {
        uint32_t hash = key_hash(d, m->u.item->string);
        struct slot *s = find_slot(d, &t, hash, m->u.item->string);

        if (s->node != 0)
            return key_twice(d, m, e);
        *s = (struct slot){ hash, m->self };
    }
    return 0;
}

static int check_small(const struct js_doc *d, const struct js_node *object,
                       struct err *e)
{
    const struct js_node *a, *b;

    for (b = js_first(object); b != NULL; b = js_next(b))
        for (a = js_first(object); a != b; a = js_next(a))
            if (strcmp(a->u.item->string, b->u.item->string) == 0)
                return key_twice(d, b, e);
    return 0;
}

static int index_objects(struct js_doc *d, struct err *e)
{
    for (size_t i = 1; i < d->count; i++) {
        struct js_node *n = &d->nodes[i];

        if (js_kind(n) != JS_OBJECT)
            continue;
        if (n->count > SMALL_OBJECT ? index_large(d, n, e)
                                    : check_small(d, n, e))
            return -1;
    }
    return 0;
}

static int scan_document(struct js_doc *d, const char *hollow, struct err *e)
{
    struct js_scan scan = { .text = d->text, .len = d->len, .hollow = hollow };
    int rc = js_scan_text(&scan, e);
    void *fitted;

    d->nodes = scan.nodes;
    d->count = scan.count;
    if (rc != 0)
        return -1;
    fitted = mem_realloc(d->nodes, d->count, sizeof *d->nodes, e);
    if (fitted == NULL)
        return -1;
    d->nodes = fitted;
    d->nodes[0].u.doc = d;
    return 0;
}

/* Takes text over, which is NUL-terminated. */
static struct js_doc *parse_owned(char *text, size_t len, const char *hollow,
                                  struct err *e)
{
    struct js_doc *d = mem_zalloc(1, sizeof *d, e);
    struct timespec now = { 0 };
    cJSON *root = NULL;

    if (d == NULL) {
        mem_free(text);
        return NULL;
    }
    d->text = text;
    d->len = len;
    d->table_count = 1;
    clock_gettime(CLOCK_REALTIME, &now);
    d->seed = (uint64_t)now.tv_nsec * UINT64_C(0x9e3779b97f4a7c15) +
              (uint64_t)(uintptr_t)text;
    if (scan_document(d, hollow, e) == 0)
        root = build_tree(d, e);
    if (root != NULL && tie_items(d, root, e) == 0 && index_objects(d, e) == 0)
        return d;
    js_free(d);
    return NULL;
}

struct js_doc *js_parse(const char *text, size_t len, struct err *e)
{
    char *copy = mem_alloc(len < SIZE_MAX ? len + 1 : len, 1, e);

    if (copy == NULL)
        return NULL;
    if (len > 0)
        memcpy(copy, text, len);
    copy[len] = '\0';
    return parse_owned(copy, len, NULL, e);
}

struct js_doc *js_read_file(const char *path, uint64_t max_bytes, struct err *e)
{
    return js_read_file_hollow(path, max_bytes, NULL, e);
}

struct js_doc *js_read_file_hollow(const char *path, uint64_t max_bytes,
                                   const char *key, struct err *e)
{
    struct buf text = BUF_INIT;
    struct js_doc *d = NULL;
    size_t len;
    char *owned;

    if (io_read_file(path, max_bytes, &text, e) == 0) {
        len = text.len;
        owned = buf_detach(&text, e);
        if (owned != NULL)
            d = parse_owned(owned, len, key, e);
        if (d == NULL)
            err_in(e, "cannot read '%s'", path);
    }
    buf_release(&text);
    return d;
}

void js_free(struct js_doc *d)
{
    if (d == NULL)
        return;
    for (size_t i = 1; i < d->table_count && d->tables != NULL; i++)
        mem_free(d->tables[i].slots);
    mem_free(d->tables);
    arena_release(&d->cjson);
    mem_free(d->nodes);
    mem_free(d->text);
    mem_free(d);
}

const struct js_node *js_root(const struct js_doc *d)
{
    return &d->nodes[1];
}

const char *js_text(const struct js_doc *d, size_t *len)
{
    *len = d->len;
    return d->text;
}

enum js_kind js_kind(const struct js_node *n)
{
    return (enum js_kind)(n->info & JS_INFO_KIND);
}

const char *js_kind_name(enum js_kind k)
{
    switch (k) {
    case JS_NULL: return "null";
    case JS_BOOL: return "a truth value";
    case JS_NUMBER: return "a number";
    case JS_STRING: return "a string";
    case JS_ARRAY: return "an array";
    case JS_OBJECT: return "an object";
    }
    return "nothing";
}

const struct js_node *js_get(const struct js_node *n, const char *key)
{
    const struct js_node *m;
    const struct js_doc *d;
    const struct slot *s;

    if (n == NULL || js_kind(n) != JS_OBJECT)
        return NULL;
    if (n->count <= SMALL_OBJECT) {
        for (m = js_first(n); m != NULL; m = js_next(m))
            if (strcmp(m->u.item->string, key) == 0)
                return m;
        return NULL;
    }
    d = doc_of(n);
    s = find_slot(d, &d->tables[n->info >> JS_INFO_SHIFT], key_hash(d, key),
                  key);
    return s->node != 0 ? &d->nodes[s->node] : NULL;
}

const struct js_node *js_first(const struct js_node *n)
{
    return n != NULL && n->count > 0 ? n + 1 : NULL;
}

const struct js_node *js_next(const struct js_node *n)
{
    return n->next != 0 ? n + (n->next - n->self) : NULL;
}

const char *js_key(const struct js_node *n)
{
    return n != NULL ? n->u.item->string : NULL;
}

size_t js_count(const struct js_node *n)
{
    return n != NULL ? n->count : 0;
}

bool js_bool(const struct js_node *n, bool *out)
{
    if (n == NULL || js_kind(n) != JS_BOOL)
        return false;
    *out = doc_of(n)->text[n->begin] == 't';
    return true;
}

bool js_string(const struct js_node *n, const char **out)
{
    if (n == NULL || js_kind(n) != JS_STRING)
        return false;
    *out = n->u.item->valuestring;
    return true;
}

/* The raw text of a number node, or NULL. */
static const char *number_text(const struct js_node *n, size_t *len)
{
    if (n == NULL || js_kind(n) != JS_NUMBER)
        return NULL;
    *len = n->end - n->begin;
    return doc_of(n)->text + n->begin;
}

bool js_double(const struct js_node *n, double *out)
{
    size_t len = 0;
    const char *t = number_text(n, &len);

    if (t == NULL)
        return false;
    if (num_parse_double(t, len, out))
        return true;
    /* A bare word, or a finite number beyond every double. */
    if (t[0] == 'N')
        *out = NAN;
    else
        *out = t[0] == '-' ? -INFINITY : INFINITY;
    return true;
}

bool js_uint(const struct js_node *n, uint64_t *out)
{
    size_t len = 0;
    const char *t = number_text(n, &len);
    uint64_t v;

    if (t == NULL || !num_parse_u64(t, len, &v) || v >> 48 != 0)
        return false;
    *out = v;
    return true;
}

bool js_integral(const struct js_node *n, int64_t *out)
{
    size_t len = 0;
    const char *t = number_text(n, &len);

    return t != NULL && num_parse_integral(t, len, INT64_C(1) << 53, out);
}

void js_span(const struct js_doc *d, const struct js_node *n, size_t *begin,
             size_t *end)
{
    (void)d;
    *begin = n->begin;
    *end = n->end;
}

static bool equal_text(const struct js_node *a, const struct js_node *b)
{
    size_t na = 0, nb = 0;
    const char *ta = number_text(a, &na), *tb = number_text(b, &nb);

    return na == nb && memcmp(ta, tb, na) == 0;
}

static bool equal_members(const struct js_node *a, const struct js_node *b)
{
    const struct js_node *x, *y = js_first(b);

    if (a->count != b->count)
        return false;
    for (x = js_first(a); x != NULL; x = js_next(x)) {
        /* The same order is the usual case. */
        if (js_kind(a) == JS_OBJECT &&
            (y == NULL || strcmp(js_key(y), js_key(x)) != 0))
            y = js_get(b, js_key(x));
        if (!js_equal(x, y))
            return false;
        y = js_next(y);
    }
    return true;
}

bool js_equal(const struct js_node *a, const struct js_node *b)
{
    bool x = false, y = false;

    if (a == NULL || b == NULL || js_kind(a) != js_kind(b))
        return a == b;
    switch (js_kind(a)) {
    case JS_NULL: return true;
    case JS_BOOL: return js_bool(a, &x) && js_bool(b, &y) && x == y;
    case JS_NUMBER: return equal_text(a, b);
    case JS_STRING:
        return strcmp(a->u.item->valuestring, b->u.item->valuestring) == 0;
    case JS_ARRAY:
    case JS_OBJECT: return equal_members(a, b);
    }
    return false;
}
