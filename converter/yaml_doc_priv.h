/*
 * One YAML document as libyaml's tree, read from hostile text.
 */
#ifndef CONVERTER_YAML_DOC_PRIV_H
#define CONVERTER_YAML_DOC_PRIV_H

#include <yaml.h>

#include "converter/base/buf.h"
#include "converter/base/compiler.h"
#include "converter/base/err.h"

/* Parses text that holds one document. On success the caller owns *doc
 * (yaml_document_delete). Depth is limited; errors say line and column. */
int yaml_doc_parse(const struct buf *text, yaml_document_t *doc,
                   struct err *e) ATTR_MUST_USE;
/* Value of a key in a mapping; NULL if absent or no mapping. A key that
 * stands there twice is an error, and NULL. */
yaml_node_t *yaml_doc_get(yaml_document_t *d, const yaml_node_t *map,
                          const char *key, struct err *e);

#endif
