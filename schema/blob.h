/*
 * The weight file: MIL blob storage, version 2.
 *
 *   0   header, 64 bytes: count (4), version 2 (4), zeros
 *   64  per blob: metadata record of 64 bytes at a multiple of 64, its data
 *       right behind it
 *   record: 0xDEADBEEF (4), type code (4), bytes (8), offset of the data (8),
 *       unused high bits of the last byte (8), zeros
 *
 * All little-endian. A blob is named by the offset of its record. The writer
 * streams; the reader trusts no number in the file.
 */
#ifndef SCHEMA_BLOB_H
#define SCHEMA_BLOB_H

#include "converter/base/io.h"
#include "converter/base/log.h"
#include "mil/mil.h"

#define BLOB_ALIGN 64u

/* Type code of the format; 0 for types that it cannot hold. */
uint32_t blob_code(enum mil_dtype d);
enum mil_dtype blob_dtype(uint32_t code); /* MIL_INVALID: unknown */

/* ---- writing ---- */

struct blob_options {
    const struct log *log;
    const char *stage; /* progress name; NULL: none */
    uint64_t progress_base, progress_total;
    bool threads; /* write and sync while sources are read */
};

struct blob_totals {
    uint64_t bytes;    /* of the file; 0: there is none */
    uint64_t blobs;    /* stored */
    uint64_t shared;   /* references beyond the first to a blob */
    char identity[37]; /* UUID text made of the contents */
};

/* The file is made with the first blob: a program without blobs has none. */
struct blob_writer;
struct blob_writer *blob_writer_new(const char *path,
                                    const struct blob_options *o,
                                    struct err *e) ATTR_MUST_USE;
/* One that writes no file and reads no source: offsets and totals are those of
 * a file in which no two sources hold equal bytes. */
struct blob_writer *blob_writer_measuring(struct err *e) ATTR_MUST_USE;
/* Stores what `d` reads and gives the record's offset. The same mil_data is
 * read once; blobs of equal type and bytes share one record. */
int blob_put(struct blob_writer *w, const struct mil_data *d, uint64_t *offset,
             struct err *e) ATTR_MUST_USE;
/* The same for bytes in memory (mil_type_bytes of the type). */
int blob_put_bytes(struct blob_writer *w, const struct mil_type *t,
                   const void *bytes, uint64_t *offset,
                   struct err *e) ATTR_MUST_USE;
/* Writes the header, syncs and closes. */
int blob_writer_finish(struct blob_writer *w, struct blob_totals *out,
                       struct err *e) ATTR_MUST_USE;
void blob_writer_free(struct blob_writer *w);

/* ---- reading ---- */

struct blob_reader {
    struct io_file file;
    uint32_t count; /* as the header says */
};
#define BLOB_READER_INIT \
    {                    \
        IO_FILE_INIT, 0  \
    }
int blob_open(struct blob_reader *r, const char *path,
              struct err *e) ATTR_MUST_USE;
/* Checks the record at `offset` against the type that the program declares
 * and gives the offset of the data, all of which lies inside the file. */
int blob_find(const struct blob_reader *r, uint64_t offset,
              const struct mil_type *t, uint64_t *data,
              struct err *e) ATTR_MUST_USE;

struct blob_record {
    uint64_t offset; /* of the record */
    enum mil_dtype dtype;
    uint64_t data, bytes, elems;
};
/* Walks the records: give *next = 0 first. 1: one more in *out; 0: the end;
 * -1: the file is damaged. */
int blob_next(const struct blob_reader *r, uint64_t *next,
              struct blob_record *out, struct err *e) ATTR_MUST_USE;
void blob_close(struct blob_reader *r);

#endif
