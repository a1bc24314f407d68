/*
 * YAML text to libyaml's tree, with limits that libyaml does not have.
 */
#include "converter/yaml_doc_priv.h"

#include <string.h>

#define MAX_DEPTH 64

static int load(yaml_parser_t *parser, yaml_document_t *doc, struct err *e)
{
    if (yaml_parser_load(parser, doc))
        return 0;
    if (parser->error == YAML_MEMORY_ERROR)
        return err_set(e, ERR_NOMEM, "no memory for the YAML document");
    /* Encoding errors have an offset and no mark. */
    if (parser->error == YAML_READER_ERROR)
        return err_set(e, ERR_INPUT, "byte %zu: %s", parser->problem_offset,
                       parser->problem ? parser->problem : "no YAML");
    return err_set(e, ERR_INPUT, "line %zu, column %zu: %s",
                   parser->problem_mark.line + 1,
                   parser->problem_mark.column + 1,
                   parser->problem ? parser->problem : "no YAML");
}

static int read_document(yaml_parser_t *parser, yaml_document_t *doc,
                         struct err *e)
{
    yaml_document_t next;
    bool more;

    if (load(parser, doc, e))
        return -1;
    if (!load(parser, &next, e)) {
        more = yaml_document_get_root_node(&next) != NULL;
        yaml_document_delete(&next);
        if (!more)
            return 0;
        err_set(e, ERR_INPUT, "it holds more than one YAML document");
    }
    yaml_document_delete(doc);
    return -1;
}

/* libyaml's time grows with the square of the depth of flow collections. The
 * count knows no quotes and no comments: text that opens this many brackets
 * without closing them is none that we read. */
static int check_depth(const struct buf *text, struct err *e)
{
    int depth = 0;

    for (size_t i = 0; i < text->len; i++) {
        char c = text->data[i];

        if (c == '[' || c == '{')
            depth++;
        else if ((c == ']' || c == '}') && depth)
            depth--;
        if (depth > MAX_DEPTH)
            return err_set(e, ERR_INPUT,
                           "more than %d brackets are open at byte %zu",
                           MAX_DEPTH, i);
    }
    return 0;
}

int yaml_doc_parse(const struct buf *text, yaml_document_t *doc, struct err *e)
{
    yaml_parser_t parser;
    int rc;

    if (check_depth(text, e))
        return -1;
    if (!yaml_parser_initialize(&parser))
        return err_set(e, ERR_NOMEM, "no memory for the YAML parser");
    yaml_parser_set_input_string(&parser, (const unsigned char *)buf_text(text),
                                 text->len);
    rc = read_document(&parser, doc, e);
    yaml_parser_delete(&parser);
    return rc;
}

yaml_node_t *yaml_doc_get(yaml_document_t *d, const yaml_node_t *map,
                          const char *key, struct err *e)
{
    yaml_node_t *found = NULL;
    size_t len = strlen(key);

    if (!map || map->type != YAML_MAPPING_NODE)
        return NULL;
    for (yaml_node_pair_t *p = map->data.mapping.pairs.start;
         p < map->data.mapping.pairs.top; p++) {
        yaml_node_t *k = yaml_document_get_node(d, p->key);

        if (!k || k->type != YAML_SCALAR_NODE || k->data.scalar.length != len ||
            memcmp(k->data.scalar.value, key, len))
            continue;
        if (found) {
            err_set(e, ERR_INPUT, "key '%s' stands there twice", key);
            return NULL;
        }
        found = yaml_document_get_node(d, p->value);
    }
    return found;
}
