/*
 * Prompts of token ids from files: safetensors with int32 tensors tokens.N
 * (N ascending from 0), or text with one prompt of ids a line.
 */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "converter/base/io.h"
#include "converter/gate.h"
#include "safetensors/st.h"

#define MAX_FILE 100000000
#define MAX_PROMPTS 10000

static int check_id(int64_t id, int64_t vocab, const char *path, size_t prompt,
                    size_t at, struct err *e)
{
    if (id >= 0 && id < vocab)
        return 0;
    return err_set(e, ERR_INPUT,
                   "'%s': prompt %zu, token %zu is id %" PRId64
                   ", the vocabulary has ids 0 to %" PRId64,
                   path, prompt, at, id, vocab - 1);
}

int prompts_add(struct prompts *p, int32_t *ids, size_t n, struct err *e)
{
    size_t cap = p->n, cap2 = p->n;

    if (mem_grow((void **)&p->ids, &cap, p->n, sizeof(*p->ids), e) ||
        mem_grow((void **)&p->lengths, &cap2, p->n, sizeof(*p->lengths), e))
        return -1;
    p->ids[p->n] = ids;
    p->lengths[p->n++] = n;
    return 0;
}

/* One more prompt of a file. */
static int add(struct prompts *p, int32_t *ids, size_t n, struct err *e)
{
    if (p->n == MAX_PROMPTS)
        return err_set(e, ERR_INPUT, "more than %d prompts", MAX_PROMPTS);
    return prompts_add(p, ids, n, e);
}

static int from_tensor(struct prompts *p, const struct st *st,
                       const struct st_tensor *t, const char *path,
                       int64_t vocab, struct err *e)
{
    int32_t *ids;

    if (t->rank != 1 || !t->elems || t->elems > 1u << 24)
        return err_set(e, ERR_INPUT,
                       "'%s': tensor '%s' has rank %d and %" PRIu64
                       " elements, a vector of 1 to 16777216 ids is needed",
                       path, t->name, t->rank, t->elems);
    ids = mem_alloc((size_t)t->elems, sizeof(*ids), e);
    if (!ids)
        return -1;
    if (st_read_i32(st, t, 0, (size_t)t->elems, ids, e))
        goto fail;
    for (size_t i = 0; i < t->elems; i++)
        if (check_id(ids[i], vocab, path, p->n, i, e))
            goto fail;
    if (!add(p, ids, (size_t)t->elems, e))
        return 0;
fail:
    mem_free(ids);
    return -1;
}

static int from_safetensors(struct prompts *p, const char *path, int64_t vocab,
                            struct err *e)
{
    struct st *st = st_open(path, e);
    int rc = st ? 0 : -1;

    for (size_t i = 0; !rc; i++) {
        char name[32];
        const struct st_tensor *t;

        snprintf(name, sizeof(name), "tokens.%zu", i);
        t = st_find(st, name);
        if (!t)
            break;
        rc = from_tensor(p, st, t, path, vocab, e);
    }
    st_close(st);
    return rc;
}

static int from_line(struct prompts *p, const char *s, size_t n,
                     const char *path, int64_t vocab, struct err *e)
{
    int32_t *ids = mem_alloc(n / 2 + 1, sizeof(*ids), e);
    size_t count = 0;

    if (!ids)
        return -1;
    for (size_t i = 0; i < n;) {
        size_t len = 0;
        int64_t id;

        while (i + len < n && !memchr(" ,\t\r", s[i + len], 4))
            len++;
        if (!len) {
            i++;
            continue;
        }
        if (!num_parse_i64(s + i, len, &id)) {
            err_set(e, ERR_INPUT,
                    "'%s': prompt %zu: '%.*s' is no token id (text has to be "
                    "tokenized before)",
                    path, p->n, len > 40 ? 40 : (int)len, s + i);
            goto fail;
        }
        if (check_id(id, vocab, path, p->n, count, e))
            goto fail;
        ids[count++] = (int32_t)id;
        i += len;
    }
    if (count)
        return add(p, ids, count, e) ? (mem_free(ids), -1) : 0;
    mem_free(ids);
    return 0;
fail:
    mem_free(ids);
    return -1;
}

static int from_text(struct prompts *p, const char *path, int64_t vocab,
                     struct err *e)
{
    struct buf b = BUF_INIT;
    int rc = io_read_file(path, MAX_FILE, &b, e);

    for (size_t i = 0; !rc && i < b.len;) {
        const char *s = b.data + i, *nl = memchr(s, '\n', b.len - i);
        size_t n = nl ? (size_t)(nl - s) : b.len - i;

        rc = from_line(p, s, n, path, vocab, e);
        i += n + 1;
    }
    buf_release(&b);
    return rc;
}

int prompts_read(struct prompts *p, const char *path, int64_t vocab,
                 struct err *e)
{
    size_t n = strlen(path);
    bool st = n > 12 && !strcmp(path + n - 12, ".safetensors");

    memset(p, 0, sizeof(*p));
    if (st ? from_safetensors(p, path, vocab, e)
           : from_text(p, path, vocab, e)) {
        prompts_release(p);
        return -1;
    }
    if (p->n)
        return 0;
    return err_set(e, ERR_INPUT, "'%s' holds no prompt (%s)", path,
                   st ? "int32 tensors tokens.0, tokens.1, ... are needed"
                      : "a line of token ids each is needed");
}

void prompts_release(struct prompts *p)
{
    for (size_t i = 0; i < p->n; i++)
        mem_free(p->ids[i]);
    mem_free(p->ids);
    mem_free(p->lengths);
    memset(p, 0, sizeof(*p));
}
