/*
 * safetensors: a hostile-input reader of one file or a sharded directory, row
 * conversion, and a writer.
 *
 * Format: 8 bytes little-endian header length N, N bytes of UTF-8 JSON, then
 * the data; offsets in the header count from byte 8 + N. Every length, offset
 * and count is checked before use; sizes of all shards are checked against
 * their headers before anything else is done. Nothing is memory-mapped and
 * no typed pointer ever points into file bytes.
 */
#ifndef SAFETENSORS_ST_H
#define SAFETENSORS_ST_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "converter/base/compiler.h"
#include "converter/base/err.h"
#include "converter/base/num.h"

enum st_dtype {
    ST_BOOL,
    ST_U8,
    ST_I8,
    ST_F8_E4M3,
    ST_F8_E5M2,
    ST_F8_E8M0,
    ST_F8_E4M3FNUZ,
    ST_F8_E5M2FNUZ,
    ST_F6_E2M3,
    ST_F6_E3M2,
    ST_F4,
    ST_I16,
    ST_U16,
    ST_F16,
    ST_BF16,
    ST_I32,
    ST_U32,
    ST_F32,
    ST_I64,
    ST_U64,
    ST_F64,
    ST_C64,
    ST_DTYPE_COUNT
};
const char *st_dtype_name(enum st_dtype d); /* "BF16" */
unsigned st_dtype_bits(enum st_dtype d);
bool st_dtype_by_name(const char *name, enum st_dtype *out);
/* BF16, F16, F32: what st_read_f32 and st_read_f16 convert. */
bool st_dtype_is_plain(enum st_dtype d);

#define ST_MAX_RANK 16
#define ST_MAX_HEADER 100000000u

struct st_tensor {
    const char *name;
    enum st_dtype dtype;
    int rank; /* 0 = scalar, one element */
    uint64_t dims[ST_MAX_RANK];
    uint64_t elems;      /* product of dims */
    uint64_t begin, end; /* bytes within the shard's data section */
    int shard;
};

struct st;

/*
 * Opens a `.safetensors` file, or a directory: `model.safetensors` if it is
 * there (a line says so when an index does not name it), else the shards that
 * `model.safetensors.index.json` names; the index alone decides between
 * copies. Rejects by the twelve rules of the format, each with its message.
 */
struct st *st_open(const char *path, struct err *e) ATTR_MUST_USE;
void st_close(struct st *s);

size_t st_count(const struct st *s);
/* Tensors sorted by name. */
const struct st_tensor *st_at(const struct st *s, size_t i);
const struct st_tensor *st_find(const struct st *s, const char *name);
size_t st_shard_count(const struct st *s);
const char *st_shard_path(const struct st *s, int shard);
uint64_t st_data_bytes(const struct st *s); /* of all tensors */
/* A shard has holes (blocks on disk far below its size), as a broken-off
 * download leaves behind: sound to the format, zeros to the model. */
bool st_shard_sparse(const struct st *s, int shard);
bool st_sparse(const struct st *s); /* any shard */
/* Things worth a line: "T in A and B, using A", unmapped tensors... */
size_t st_note_count(const struct st *s);
const char *st_note(const struct st *s, size_t i);
/* Mapped by the index, absent from its shard: an error only for a tensor
 * that is needed or unknown, so the caller (ledger) judges. */
size_t st_missing_count(const struct st *s);
const char *st_missing_name(const struct st *s, size_t i, int *shard);

/* Raw bytes [offset, offset + n) of a tensor. Thread-safe (pread). */
int st_read_bytes(const struct st *s, const struct st_tensor *t,
                  uint64_t offset, void *dst, size_t n,
                  struct err *e) ATTR_MUST_USE;
/* Elements [first, first + n), exact for BF16/F16/F32. Other dtypes: an
 * ERR_UNSUPPORTED that names tensor and dtype. Thread-safe. */
int st_read_f32(const struct st *s, const struct st_tensor *t, uint64_t first,
                size_t n, float *dst, struct err *e) ATTR_MUST_USE;
int st_read_f16(const struct st *s, const struct st_tensor *t, uint64_t first,
                size_t n, f16_t *dst, struct err *e) ATTR_MUST_USE;
/* I32 (and I64 in range) tensors, for token files. */
int st_read_i32(const struct st *s, const struct st_tensor *t, uint64_t first,
                size_t n, int32_t *dst, struct err *e) ATTR_MUST_USE;
/* "[2, 3]" for messages. */
void st_shape_text(const struct st_tensor *t, char *out, size_t cap);
/* Size and time of every shard compared with those at opening. */
int st_unchanged(const struct st *s, struct err *e) ATTR_MUST_USE;

/*
 * Writer. Declare all tensors, begin, then write the data of each in the
 * order of declaration, in pieces. Byte-stable: same input, same bytes.
 */
struct st_writer;
struct st_writer *st_writer_new(struct err *e) ATTR_MUST_USE;
int st_writer_add(struct st_writer *w, const char *name, enum st_dtype dtype,
                  int rank, const uint64_t *dims, struct err *e) ATTR_MUST_USE;
/* Replaces `path` if it is a file: written beside it as "<path>.<pid>.part"
 * and renamed by st_writer_finish. */
int st_writer_begin(struct st_writer *w, const char *path,
                    struct err *e) ATTR_MUST_USE;
int st_writer_write(struct st_writer *w, const void *bytes, size_t n,
                    struct err *e) ATTR_MUST_USE;
/* Fails unless exactly the declared bytes were written. */
int st_writer_finish(struct st_writer *w, struct err *e) ATTR_MUST_USE;
void st_writer_free(struct st_writer *w); /* removes an unfinished file */

#endif
