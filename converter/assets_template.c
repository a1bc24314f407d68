/*
 * Chat templates: found in up to four places, chosen by transformers'
 * precedence.
 *
 *   chat_template.jinja                 the default, wins
 *   tokenizer_config.json chat_template a string, or a list of named ones
 *   chat_template.json    chat_template the same, as processors carry it
 *   additional_chat_templates/X.jinja   further ones; copied, never default
 *
 * Nothing is rendered here.
 */
#include <string.h>

#include "converter/assets_priv.h"
#include "converter/base/io.h"
#include "converter/base/mem.h"

/* The text must come back from a JSON string as it is: UTF-8 and no NUL. */
static int check_text(const struct buf *b, struct err *e)
{
    struct buf quoted = BUF_INIT;
    struct js_doc *d = NULL;
    const char *back;
    int rc = -1;

    js_quote(&quoted, buf_text(b), b->len);
    if (!buf_ok(&quoted, e) && (d = js_parse(quoted.data, quoted.len, e)))
        rc = 0;
    if (!rc && (!js_string(js_root(d), &back) || strlen(back) != b->len ||
                memcmp(back, buf_text(b), b->len) != 0))
        rc = err_set(e, ERR_INPUT, "it is no UTF-8 text");
    js_free(d);
    buf_release(&quoted);
    return rc;
}

static int read_file(struct assets *a, char **out, struct err *e)
{
    char *path = io_join(a->ckpt->dir, ASSETS_JINJA, e);
    struct buf b = BUF_INIT;
    int rc = path ? 0 : -1;

    if (path && io_exists(path)) {
        rc = io_read_file(path, ASSETS_MAX_TEMPLATE, &b, e);
        if (!rc && check_text(&b, e))
            rc = err_in(e, "'%s'", path);
        if (!rc && !(*out = mem_strndup(buf_text(&b), b.len, e)))
            rc = -1;
    }
    buf_release(&b);
    mem_free(path);
    return rc;
}

/* One template of a list: by position in an array of {name, template}, or a
 * member of an object. */
static int entry(const struct js_node *n, const char **name, const char **text,
                 const char *where, struct err *e)
{
    bool object = js_key(n) != NULL;

    *name = js_key(n);
    if ((object || js_string(js_get(n, "name"), name)) &&
        js_string(object ? n : js_get(n, "template"), text))
        return 0;
    return err_set(e, ERR_INPUT,
                   "%s: an entry of chat_template has no name and template",
                   where);
}

static int add_named(struct assets *a, const char *name, const char *text,
                     struct err *e)
{
    struct assets_named *n;

    if (!io_is_component(name) || strlen(name) > 200 || name[0] == '.')
        return err_set(e, ERR_INPUT,
                       "chat template '%s' has a name that cannot be a file's",
                       name);
    if (mem_grow((void **)&a->named, &a->cap_named, a->n_named,
                 sizeof(*a->named), e))
        return -1;
    n = &a->named[a->n_named];
    n->name = mem_strdup(name, e);
    n->text = n->name ? mem_strdup(text, e) : NULL;
    if (n->text) {
        a->n_named++;
        return 0;
    }
    mem_free(n->name);
    return -1;
}

/* "default" of a list, or for want of it the first one. */
static int default_of(struct assets *a, const struct js_node *list,
                      const char *where, const char **out, struct err *e)
{
    const char *name, *text, *first = NULL;
    bool chosen = false;

    for (const struct js_node *n = js_first(list); n; n = js_next(n)) {
        if (entry(n, &name, &text, where, e))
            return -1;
        if (!strcmp(name, "default")) {
            *out = text;
            chosen = true;
            continue;
        }
        if (!first) {
            first = name;
            if (!chosen)
                *out = text;
        }
        if (add_named(a, name, text, e))
            return -1;
    }
    if (!chosen && first)
        buf_printf(a->notes,
                   "%s lists chat templates without a default: '%s' is used\n",
                   where, first);
    return 0;
}

/* The template in a member; *out stays NULL if it is absent or null. */
static int from_member(struct assets *a, const struct js_doc *d,
                       const char *where, const char **out, struct err *e)
{
    const struct js_node *n = d ? js_get(js_root(d), "chat_template") : NULL;

    if (!n || js_kind(n) == JS_NULL || js_string(n, out))
        return 0;
    if (js_kind(n) != JS_ARRAY && js_kind(n) != JS_OBJECT)
        return err_set(e, ERR_INPUT,
                       "%s: chat_template is %s, a string or a list of named "
                       "ones is allowed",
                       where, js_kind_name(js_kind(n)));
    a->template_listed = true;
    return default_of(a, n, where, out, e);
}

static int keep(struct assets *a, const char *text, struct err *e)
{
    if (text && !a->template)
        a->template = mem_strdup(text, e);
    return text && !a->template ? -1 : 0;
}

static int from_processor(struct assets *a, struct err *e)
{
    struct js_doc *d = NULL;
    const char *text = NULL;
    int rc = -1;

    if (!assets_read_json(a->ckpt, "chat_template.json", &d, e) &&
        !from_member(a, d, "chat_template.json", &text, e))
        rc = keep(a, text, e);
    js_free(d);
    return rc;
}

int assets_choose_template(struct assets *a, struct err *e)
{
    const char *inner = NULL;

    if (read_file(a, &a->template, e) ||
        from_member(a, a->tokenizer_config, "tokenizer_config.json", &inner, e))
        return -1;
    if (a->template && inner && strcmp(a->template, inner) != 0)
        buf_puts(a->notes, ASSETS_JINJA " and the chat template in "
                                        "tokenizer_config.json differ: the "
                                        "file wins\n");
    if (keep(a, inner, e))
        return -1;
    return a->template ? 0 : from_processor(a, e);
}
