/*
 * Inside of the safetensors reader: what the header parser, the index and the
 * data reader share.
 */
#ifndef SAFETENSORS_ST_PRIV_H
#define SAFETENSORS_ST_PRIV_H

#include "converter/base/io.h"
#include "converter/base/mem.h"
#include "safetensors/st.h"

/* The format's schema caps every integer here. */
#define ST_MAX_INTEGER ((UINT64_C(1) << 48) - 1)

/* A name in a message: names come from files and may be of any length. */
#define ST_NAME "'%.300s'"

struct st_shard {
    struct io_file file;
    uint64_t data_at; /* file offset of the data section */
    bool sparse;
};

struct st {
    struct arena arena; /* names, notes */
    struct st_shard *shards;
    size_t n_shards;
    struct st_tensor *tensors;
    size_t n, cap;
    uint64_t data_bytes;
    const char **notes;
    size_t n_notes, cap_notes;
    struct st_missing {
        const char *name;
        int shard;
    } * missing;
    size_t n_missing, cap_missing;
};

/* Reads and judges the header of an open shard: sets data_at and appends its
 * tensors in the order of their data. Errors name the file. */
int st_header_load(struct st *s, int shard, struct err *e) ATTR_MUST_USE;

#endif
