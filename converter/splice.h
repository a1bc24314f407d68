/*
 * Changes single members of a JSON object in its text: everything else stays
 * byte for byte. Only members of the root object.
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
 * the last member. */
int splice_set(struct splice *s, const char *key, const char *value,
               struct err *e) ATTR_MUST_USE;
/* Removes a member; absent is fine. */
int splice_remove(struct splice *s, const char *key,
                  struct err *e) ATTR_MUST_USE;
/* Parses the result again and compares: all members of `before` but those
 * named in `changed` (NULL-terminated) must be unchanged. */
int splice_verify(const struct splice *s, const struct js_doc *before,
                  const char *const *changed, struct err *e) ATTR_MUST_USE;
void splice_release(struct splice *s);

#endif
