/*
 * Changes members of a JSON object in its text: everything else stays byte
 * for byte. Members are set in the root object; they are removed by key there,
 * or anywhere by a rule.
 */
#ifndef CONVERTER_SPLICE_H
#define CONVERTER_SPLICE_H

#include "converter/base/json.h"

struct splice {
    struct buf text; /* the current text */
};
int splice_begin(struct splice *s, const char *text, size_t len,
                 struct err *e) ATTR_MUST_USE;
/* Sets member `key` to `value` (JSON text): replaced in place, or appended as
 * the last member with the white space of the others. */
int splice_set(struct splice *s, const char *key, const char *value,
               struct err *e) ATTR_MUST_USE;
/* Removes a member; absent is fine. */
int splice_remove(struct splice *s, const char *key,
                  struct err *e) ATTR_MUST_USE;
/* Which members of objects go, at any depth. */
typedef bool (*splice_rule)(const char *key, const struct js_node *value);
/* Removes every member that `rule` picks; *removed counts them. */
int splice_remove_all(struct splice *s, splice_rule rule, size_t *removed,
                      struct err *e) ATTR_MUST_USE;
/* Parses the result again and compares it with `before`: the root's members
 * named in `changed` (NULL-terminated) may differ or be new, those that `rule`
 * (may be NULL) picks must be gone, all else must be there unchanged. */
int splice_verify(const struct splice *s, const struct js_doc *before,
                  const char *const *changed, splice_rule rule,
                  struct err *e) ATTR_MUST_USE;
void splice_release(struct splice *s);

#endif
