/*
 * Protobuf bytes are judged before protobuf-c unpacks them: it recurses once
 * per nested message without a limit, and a few bytes of input can cost a
 * hundred times as much memory.
 */
#ifndef SCHEMA_WIRE_PRIV_H
#define SCHEMA_WIRE_PRIV_H

#include <protobuf-c/protobuf-c.h>

#include "converter/base/err.h"
#include "converter/base/mem.h"

#define WIRE_MAX_DEPTH 64
#define WIRE_MAX_BYTES ((uint64_t)256 << 20) /* of one message */
#define WIRE_MAX_MEMORY ((uint64_t)1 << 30)  /* unpacked */
#define WIRE_MAX_FIELDS ((uint64_t)64 << 20) /* all of them */

/* Walks the message by its descriptor: tags, wire types, lengths inside the
 * parent, depth, text (UTF-8, no U+0000), no singular field twice, numbers
 * of fields and the memory that unpacking takes. */
int wire_scan(const ProtobufCMessageDescriptor *d, const void *p, size_t n,
              struct err *e) ATTR_MUST_USE;

/* Memory for protobuf-c from an arena; `e` takes the first failure. */
struct wire_memory {
    struct arena *arena;
    struct err *e;
};
ProtobufCAllocator wire_allocator(struct wire_memory *m);

#endif
