/*
 * Manifest.json: written in one canonical form, read with every rule of the
 * format. Paths in it are never joined as they stand: an item's path must be
 * its author and its name, each one path component.
 */
#include "schema/manifest_priv.h"

#include <inttypes.h>
#include <string.h>

#include "converter/base/io.h"
#include "converter/base/json.h"
#include "converter/base/mem.h"
#include "converter/base/num.h"

#define MANIFEST_MAX_BYTES ((uint64_t)1 << 20)
#define MAX_ITEMS 256

static void print_item(struct buf *out, const char *id, const char *what,
                       const char *name, const char *end)
{
    buf_printf(out,
               "        \"%s\": {\n"
               "            \"author\": \"" MANIFEST_AUTHOR "\",\n"
               "            \"description\": \"CoreML Model %s\",\n"
               "            \"name\": \"%s\",\n"
               "            \"path\": \"" MANIFEST_AUTHOR "/%s\"\n"
               "        }%s\n",
               id, what, name, name, end);
}

void manifest_print(struct buf *out, const char *model_id,
                    const char *weights_id)
{
    bool model_first = strcmp(model_id, weights_id) < 0;

    buf_puts(out, "{\n    \"fileFormatVersion\": \"1.0.0\",\n"
                  "    \"itemInfoEntries\": {\n");
    if (model_first)
        print_item(out, model_id, "Specification", MANIFEST_MODEL, ",");
    print_item(out, weights_id, "Weights", MANIFEST_WEIGHTS,
               model_first ? "" : ",");
    if (!model_first)
        print_item(out, model_id, "Specification", MANIFEST_MODEL, "");
    buf_printf(out, "    },\n    \"rootModelIdentifier\": \"%s\"\n}\n",
               model_id);
}

static int text_member(const struct js_node *n, const char *key,
                       const char **out, struct err *e)
{
    const struct js_node *m = js_get(n, key);

    if (js_string(m, out))
        return 0;
    return err_set(e, ERR_INPUT, "'%s' is %s, not a string", key,
                   m ? js_kind_name(js_kind(m)) : "absent");
}

/* Three dot-separated numbers, not newer than 1.0.0. */
static int check_version(const char *v, struct err *e)
{
    uint64_t n[3] = { 0, 0, 0 };
    const char *p = v;
    int i;

    for (i = 0; i < 3; i++) {
        size_t len = strspn(p, "0123456789");

        if (!num_parse_u64(p, len, &n[i]) || p[len] != (i < 2 ? '.' : '\0'))
            return err_set(e, ERR_INPUT,
                           "fileFormatVersion '%s' is not of the form 1.0.0",
                           v);
        p += len + 1;
    }
    if (n[0] > 1 || (n[0] == 1 && (n[1] || n[2])))
        return err_set(e, ERR_UNSUPPORTED,
                       "fileFormatVersion '%s', supported up to 1.0.0", v);
    return 0;
}

struct entry {
    const char *author, *name;
};

static int read_entry(const struct js_node *n, struct entry *out, struct err *e)
{
    const char *description, *path;
    size_t k;

    if (js_kind(n) != JS_OBJECT)
        return err_set(e, ERR_INPUT, "the item is no object");
    if (text_member(n, "author", &out->author, e) ||
        text_member(n, "description", &description, e) ||
        text_member(n, "name", &out->name, e) ||
        text_member(n, "path", &path, e))
        return -1;
    k = strlen(out->author);
    if (!io_is_component(out->author) || !io_is_component(out->name) ||
        strncmp(path, out->author, k) != 0 || path[k] != '/' ||
        strcmp(path + k + 1, out->name) != 0)
        return err_set(e, ERR_INPUT, "path '%s' is not author '%s' / name '%s'",
                       path, out->author, out->name);
    return 0;
}

static int set_path(char **to, const char *package, const struct entry *en,
                    struct err *e)
{
    *to = mem_printf(e, "%s/" MANIFEST_DATA "/%s/%s", package, en->author,
                     en->name);
    if (!*to)
        return -1;
    if (!io_exists(*to))
        return err_set(e, ERR_INPUT, "'%s' is listed and does not exist", *to);
    return 0;
}

static int read_items(struct manifest *m, const struct js_node *items,
                      const char *root, const char *package, struct err *e)
{
    const struct js_node *n;

    if (!items || js_kind(items) != JS_OBJECT)
        return err_set(e, ERR_INPUT, "'itemInfoEntries' is %s, not an object",
                       items ? js_kind_name(js_kind(items)) : "absent");
    if (js_count(items) > MAX_ITEMS)
        return err_set(e, ERR_UNSUPPORTED, "%zu items, at most %d are read",
                       js_count(items), MAX_ITEMS);
    for (n = js_first(items); n; n = js_next(n)) {
        struct entry en;

        if (read_entry(n, &en, e))
            return err_in(e, "item '%s'", js_key(n));
        if (strcmp(js_key(n), root) == 0) {
            if (set_path(&m->model, package, &en, e))
                return -1;
        } else if (strcmp(en.name, MANIFEST_WEIGHTS) == 0 &&
                   strcmp(en.author, MANIFEST_AUTHOR) == 0) {
            if (m->weights)
                return err_set(e, ERR_INPUT, "two items are called '%s'",
                               MANIFEST_WEIGHTS);
            if (set_path(&m->weights, package, &en, e))
                return -1;
        }
    }
    if (!m->model)
        return err_set(e, ERR_INPUT, "rootModelIdentifier '%s' names no item",
                       root);
    return 0;
}

int manifest_read(struct manifest *m, const char *package, struct err *e)
{
    char *path = io_join(package, MANIFEST_NAME, e);
    const char *version, *root_id;
    struct js_doc *doc = NULL;
    const struct js_node *root;
    int rc = -1;

    if (!path)
        return -1;
    doc = js_read_file(path, MANIFEST_MAX_BYTES, e);
    if (!doc)
        goto out;
    root = js_root(doc);
    if (text_member(root, "fileFormatVersion", &version, e) ||
        check_version(version, e) ||
        text_member(root, "rootModelIdentifier", &root_id, e) ||
        read_items(m, js_get(root, "itemInfoEntries"), root_id, package, e))
        err_in(e, "'%s'", path);
    else
        rc = 0;
out:
    if (rc)
        manifest_release(m);
    js_free(doc);
    mem_free(path);
    return rc;
}

void manifest_release(struct manifest *m)
{
    mem_free(m->model);
    mem_free(m->weights);
    m->model = NULL;
    m->weights = NULL;
}
