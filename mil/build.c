/*
 * The builder: emits checked ops, names them, keeps constants once per
 * function. All naming is in unique_name() and claim_name().
 */
#include "mil/build.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "converter/base/buf.h"
#include "converter/base/num.h"
#include "mil/name_map_priv.h"
#include "mil/words_priv.h"

#define MAX_SCOPES 16

struct mb_names {
    struct arena arena;     /* keys of the maps */
    struct name_map taken;  /* names of values and ops */
    struct name_map consts; /* type and bytes -> mil_ref */
    size_t scope_end[MAX_SCOPES];
    int depth;
};

/* Where each parameter lies in its args struct, in the order of the table. */
#define OP(id, since, outputs, flags) static const size_t fields_##id[] = {
#define IN(id, param, cls, flags) offsetof(struct mil_args_##id, param),
#define LIST(id, param, cls, flags) offsetof(struct mil_args_##id, param),
#define END(id) \
    0           \
    }           \
    ;
#include "mil/ops.def"

static const size_t *const fields[MIL_OP_COUNT] = {
#define OP(id, since, outputs, flags) [MIL_OP_##id] = fields_##id,
#include "mil/ops.def"
};

/* ---- errors ---- */

static bool failed(const struct mb *b)
{
    return b->err.code != ERR_OK;
}

mil_ref mb_fail(struct mb *b, enum err_code code, const char *fmt, ...)
{
    char text[ERR_TEXT_MAX];
    va_list ap;

    if (failed(b))
        return 0;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    err_set(&b->err, code, "%s", text);
    if (b->scope[0])
        err_in(&b->err, "in '%s'", b->scope);
    return 0;
}

/* ---- names ---- */

static bool take(struct mb *b, const char *name)
{
    char *key = arena_strdup(&b->names->arena, name, &b->err);

    return key && name_map_set(&b->names->taken, key, 1, &b->err) == 0;
}

static bool is_taken(const struct mb *b, const char *name)
{
    return name_map_find(&b->names->taken, name) != NULL;
}

#define NAME_ROOM 288 /* scope, label, prefix and a number */

/* Makes any text a legal name: foreign characters become '_', a leading digit
 * gets a prefix, a reserved word a suffix. */
static void make_legal(char name[NAME_ROOM])
{
    for (char *p = name; *p; p++) {
        bool ok = (*p >= 'a' && *p <= 'z') || (*p >= 'A' && *p <= 'Z') ||
                  (*p >= '0' && *p <= '9') || *p == '_';

        if (!ok)
            *p = '_';
    }
    if (name[0] >= '0' && name[0] <= '9') {
        memmove(name + 4, name, strlen(name) + 1);
        memcpy(name, "var_", 4);
    }
    if (name[0] == '\0' || mil_is_reserved(name))
        memcpy(name + strlen(name), "_", 2);
}

/* A free name for a label in the current scope, taken at once. */
static bool unique_name(struct mb *b, const char *label, bool scoped,
                        char name[NAME_ROOM])
{
    size_t end;

    if (scoped && b->scope[0])
        snprintf(name, NAME_ROOM - 16, "%s_%s", b->scope, label);
    else
        snprintf(name, NAME_ROOM - 16, "%s", label);
    make_legal(name);
    end = strlen(name);
    for (unsigned i = 1; is_taken(b, name); i++)
        snprintf(name + end, NAME_ROOM - end, "_%u", i);
    return take(b, name);
}

/* Takes exactly this name, or fails. */
static bool claim_name(struct mb *b, const char *what, const char *name)
{
    if (!mil_is_identifier(name) || mil_is_reserved(name))
        mb_fail(b, ERR_INPUT,
                "%s '%s' is no legal name: letters, digits and '_', no "
                "reserved word",
                what, name);
    else if (is_taken(b, name))
        mb_fail(b, ERR_INPUT, "%s '%s': the name is taken", what, name);
    return !failed(b) && take(b, name);
}

void mb_scope(struct mb *b, const char *fmt, ...)
{
    size_t end = strlen(b->scope), n = end;
    va_list ap;
    int k;

    if (failed(b))
        return;
    if (b->names->depth == MAX_SCOPES) {
        mb_fail(b, ERR_INPUT, "scopes are nested deeper than %d", MAX_SCOPES);
        return;
    }
    if (n)
        b->scope[n++] = '_';
    va_start(ap, fmt);
    k = vsnprintf(b->scope + n, sizeof b->scope - n, fmt, ap);
    va_end(ap);
    if (k < 0 || (size_t)k >= sizeof b->scope - n)
        mb_fail(b, ERR_INPUT, "the scope's name is longer than %zu characters",
                sizeof b->scope - 1);
    else
        b->names->scope_end[b->names->depth++] = end;
}

void mb_leave(struct mb *b)
{
    if (failed(b))
        return;
    if (b->names->depth == 0)
        mb_fail(b, ERR_INPUT, "a scope is left that was never entered");
    else
        b->scope[b->names->scope_end[--b->names->depth]] = '\0';
}

void mb_name(struct mb *b, const char *fmt, ...)
{
    va_list ap;
    int k;

    if (failed(b))
        return;
    va_start(ap, fmt);
    k = vsnprintf(b->next_name, sizeof b->next_name, fmt, ap);
    va_end(ap);
    if (k < 0 || (size_t)k >= sizeof b->next_name)
        mb_fail(b, ERR_INPUT, "label '%s...' is longer than %zu characters",
                b->next_name, sizeof b->next_name - 1);
}

/* The label set by mb_name, or the op's type and a running number. */
static void next_label(struct mb *b, const char *type,
                       char label[sizeof b->next_name])
{
    if (b->next_name[0])
        memcpy(label, b->next_name, sizeof b->next_name);
    else
        snprintf(label, sizeof b->next_name, "%s_%u", type, b->serial++);
    b->next_name[0] = '\0';
}

/* ---- functions ---- */

void mb_begin(struct mb *b, struct mil_program *p, const char *name)
{
    memset(b, 0, sizeof *b);
    b->program = p;
    b->names = mem_zalloc(1, sizeof *b->names, &b->err);
    if (!b->names)
        return;
    if (!mil_is_identifier(name) || mil_is_reserved(name))
        mb_fail(b, ERR_INPUT, "function '%s' is no legal name", name);
    else
        b->f = mil_program_add(p, name, &b->err);
}

int mb_end(struct mb *b, struct err *e)
{
    const char *name = b->f ? b->f->name : "?";

    if (!failed(b) && b->names->depth)
        mb_fail(b, ERR_INPUT, "the scope is not left");
    if (!failed(b) && b->f->n_outputs == 0)
        mb_fail(b, ERR_INPUT, "no output is declared");
    if (b->names) {
        name_map_release(&b->names->taken);
        name_map_release(&b->names->consts);
        arena_release(&b->names->arena);
        mem_free(b->names);
        b->names = NULL;
    }
    if (!failed(b))
        return 0;
    return err_set(e, b->err.code, "function '%s': %s", name, b->err.text);
}

/* ---- ops ---- */

static int set_args(struct mb *b, struct mil_op *op, const void *args)
{
    const struct mil_op_info *info = mil_op_info(op->code);

    for (int i = 0; i < info->n_params; i++) {
        const char *at = (const char *)args + fields[op->code][i];
        struct mb_refs list;
        mil_ref one;

        if (info->params[i].flags & MIL_P_LIST) {
            memcpy(&list, at, sizeof list);
        } else {
            memcpy(&one, at, sizeof one);
            list = (struct mb_refs){ &one, one != 0 };
        }
        if (list.n && mil_set_arg(b->f, op, i, list.refs, list.n, &b->err))
            return -1;
    }
    return 0;
}

static int add_outputs(struct mb *b, struct mil_op *op, const char *name)
{
    struct mil_type *types;
    char out[NAME_ROOM];
    uint32_t n;
    int rc = -1;

    if (mil_op_out_count(b->f, op, &n, &b->err))
        return -1;
    types = mem_zalloc(n ? n : 1, sizeof *types, &b->err);
    if (!types || mil_infer_op(b->f, op, types, n, &b->err))
        goto out;
    for (uint32_t i = 0; i < n; i++) {
        snprintf(out, sizeof out, "%s", name);
        if (n > 1) {
            char label[NAME_ROOM + 12];

            snprintf(label, sizeof label, "%s_%u", name, i);
            if (!unique_name(b, label, false, out))
                goto out;
        }
        if (!mil_add_output(b->f, op, out, &types[i], &b->err))
            goto out;
    }
    rc = 0;
out:
    mem_free(types);
    return rc;
}

static const char *base_name(const char *path)
{
    const char *slash = strrchr(path, '/');

    return slash ? slash + 1 : path;
}

/* Writes have no output to name them: they are called after the state. */
static void op_label(struct mb *b, enum mil_opcode code, const void *args,
                     char label[sizeof b->next_name])
{
    mil_ref state;

    if (code == MIL_OP_write_state && !b->next_name[0]) {
        memcpy(&state, (const char *)args + fields[code][0], sizeof state);
        if (state && state < b->f->n_values)
            snprintf(b->next_name, sizeof b->next_name, "%.64s_%u_write_state",
                     mil_value(b->f, state)->name, b->serial++);
    }
    next_label(b, mil_op_info(code)->name, label);
}

mil_ref mb_emit(struct mb *b, enum mil_opcode code, const void *args,
                const char *file, int line)
{
    char label[sizeof b->next_name], name[NAME_ROOM];
    struct mil_op *op;

    if (failed(b))
        return 0;
    op_label(b, code, args, label);
    if (!unique_name(b, label, true, name))
        return 0;
    op = mil_add_op(b->f, code, name, &b->err);
    if (!op || set_args(b, op, args) || add_outputs(b, op, name)) {
        err_in(&b->err, "%s:%d", base_name(file), line);
        return 0;
    }
    return op->n_outs ? op->outs[0] : 0;
}

static bool known_ref(struct mb *b, mil_ref v)
{
    if (failed(b))
        return false;
    if (v == 0 || v >= b->f->n_values) {
        mb_fail(b, ERR_INPUT, "value %u of %zu is used", v, b->f->n_values);
        return false;
    }
    return true;
}

mil_ref mb_out(struct mb *b, mil_ref v, uint32_t i)
{
    const struct mil_op *op;

    if (!known_ref(b, v))
        return 0;
    op = mil_value(b->f, v)->op < 0 ? NULL : &b->f->ops[mil_value(b->f, v)->op];
    if (!op || i >= op->n_outs)
        return mb_fail(b, ERR_INPUT, "'%s' has no output %u",
                       mil_value(b->f, v)->name, i);
    return op->outs[i];
}

struct mil_type mb_type(const struct mb *b, mil_ref v)
{
    struct mil_type none;

    memset(&none, 0, sizeof none);
    if (failed(b) || v == 0 || v >= b->f->n_values)
        return none;
    return mil_value(b->f, v)->type;
}

/* ---- inputs and outputs ---- */

static mil_ref add_input(struct mb *b, enum mil_value_kind kind,
                         const char *name, const struct mil_type *t)
{
    const char *what = kind == MIL_V_STATE ? "state" : "input";

    if (failed(b) || !claim_name(b, what, name))
        return 0;
    return mil_add_value(b->f, kind, name, t, &b->err);
}

static bool rank_ok(struct mb *b, const char *name, int rank)
{
    if (!failed(b) && (rank < 1 || rank > 5))
        mb_fail(b, ERR_INPUT, "'%s' has rank %d, allowed: 1 to 5", name, rank);
    return !failed(b);
}

mil_ref mb_input(struct mb *b, const char *name, enum mil_dtype dtype, int rank,
                 const int64_t *dims)
{
    struct mil_type t;

    if (!rank_ok(b, name, rank))
        return 0;
    t = mil_type_make(dtype, rank, dims);
    return add_input(b, MIL_V_INPUT, name, &t);
}

mil_ref mb_state(struct mb *b, const char *name, int rank, const int64_t *dims)
{
    struct mil_type t;

    if (!rank_ok(b, name, rank))
        return 0;
    t = mil_type_make(MIL_F16, rank, dims);
    if (!mil_type_is_static(&t))
        return mb_fail(b, ERR_INPUT, "state '%s' has an unknown dim", name);
    return add_input(b, MIL_V_STATE, name, &t);
}

/* Values that may not be outputs themselves: the loader takes some of them,
 * later compilers refuse them. */
static bool needs_identity(const struct mb *b, mil_ref v)
{
    const struct mil_value *val = mil_value(b->f, v);

    if (val->kind != MIL_V_RESULT || val->konst || val->op < 0 ||
        b->f->ops[val->op].code == MIL_OP_read_state ||
        (mil_op_info(b->f->ops[val->op].code)->flags & MIL_O_CONSTEXPR))
        return true;
    for (size_t i = 0; i < b->f->n_outputs; i++) {
        if (b->f->outputs[i] == v)
            return true;
    }
    return false;
}

void mb_output(struct mb *b, const char *name, mil_ref v)
{
    struct mil_op *op;
    const char *copy;

    if (!known_ref(b, v))
        return;
    if (needs_identity(b, v))
        v = MB(b, identity, .x = v);
    if (failed(b))
        return;
    if (strcmp(mil_value(b->f, v)->name, name) != 0) {
        if (!claim_name(b, "output", name))
            return;
        copy = arena_strdup(&b->program->arena, name, &b->err);
        if (!copy)
            return;
        mil_value(b->f, v)->name = copy;
        op = &b->f->ops[mil_value(b->f, v)->op];
        if (op->n_outs == 1)
            op->name = copy;
    }
    if (mil_add_function_output(b->f, v, &b->err))
        return;
}

/* ---- constants ---- */

static mil_ref add_const(struct mb *b, const char *name,
                         const struct mil_const *c)
{
    struct mil_op *op = mil_add_op(b->f, MIL_OP_const, name, &b->err);
    const struct mil_const *copy;
    mil_ref r;

    if (!op)
        return 0;
    r = mil_add_output(b->f, op, name, &c->type, &b->err);
    copy = r ? mil_copy_const(b->program, c, &b->err) : NULL;
    if (!copy)
        return 0;
    mil_value(b->f, r)->konst = copy;
    return r;
}

/* What makes two constants one: type and content. */
static void const_key(struct buf *key, const struct mil_const *c)
{
    buf_add(key, &c->type.dtype, sizeof c->type.dtype);
    buf_add(key, &c->type.rank, sizeof c->type.rank);
    buf_add(key, c->type.dims, (size_t)c->type.rank * sizeof c->type.dims[0]);
    if (c->data)
        buf_add(key, &c->data, sizeof c->data);
    else if (c->strings)
        buf_puts(key, c->strings[0]);
    else
        buf_add(key, c->bytes, (size_t)mil_type_bytes(&c->type));
}

/* The const op of this content, made with `label` if there is none yet. */
static mil_ref shared_const(struct mb *b, const char *label, bool scoped,
                            const struct mil_const *c)
{
    struct buf key = BUF_INIT;
    char name[NAME_ROOM];
    uint32_t *found;
    void *copy;
    mil_ref r = 0;

    const_key(&key, c);
    if (buf_ok(&key, &b->err))
        goto out;
    found = name_map_get(&b->names->consts, key.data, key.len);
    if (found) {
        r = *found;
        goto out;
    }
    if (!unique_name(b, label, scoped, name))
        goto out;
    r = add_const(b, name, c);
    copy = arena_memdup(&b->names->arena, key.data, key.len, &b->err);
    if (!r || !copy ||
        name_map_put(&b->names->consts, copy, key.len, r, &b->err))
        r = 0;
out:
    buf_release(&key);
    return r;
}

/* Small constants belong to the whole function: no scope in their names. */
static mil_ref small_const(struct mb *b, const struct mil_type *t,
                           const void *bytes)
{
    struct mil_const c = { .type = *t, .bytes = bytes };
    char label[32];

    if (failed(b))
        return 0;
    snprintf(label, sizeof label, "const_%s_%zu", mil_dtype_name(t->dtype),
             b->names->consts.used);
    return shared_const(b, label, false, &c);
}

mil_ref mb_bool(struct mb *b, bool v)
{
    struct mil_type t = mil_scalar(MIL_BOOL);
    unsigned char byte = v;

    return small_const(b, &t, &byte);
}

mil_ref mb_int(struct mb *b, int32_t v)
{
    struct mil_type t = mil_scalar(MIL_I32);
    unsigned char bytes[4];

    store_le32(bytes, (uint32_t)v);
    return small_const(b, &t, bytes);
}

mil_ref mb_ints(struct mb *b, size_t n, const int32_t *v)
{
    const int64_t dim = (int64_t)n;
    struct mil_type t = mil_type_make(MIL_I32, 1, &dim);
    unsigned char *bytes;
    mil_ref r;

    if (failed(b))
        return 0;
    bytes = mem_alloc(n, 4, &b->err);
    if (!bytes)
        return 0;
    for (size_t i = 0; i < n; i++)
        store_le32(bytes + 4 * i, (uint32_t)v[i]);
    r = small_const(b, &t, bytes);
    mem_free(bytes);
    return r;
}

mil_ref mb_bools(struct mb *b, size_t n, const bool *v)
{
    const int64_t dim = (int64_t)n;
    struct mil_type t = mil_type_make(MIL_BOOL, 1, &dim);
    unsigned char *bytes;
    mil_ref r;

    if (failed(b))
        return 0;
    bytes = mem_alloc(n, 1, &b->err);
    if (!bytes)
        return 0;
    for (size_t i = 0; i < n; i++)
        bytes[i] = v[i];
    r = small_const(b, &t, bytes);
    mem_free(bytes);
    return r;
}

mil_ref mb_string(struct mb *b, const char *s)
{
    struct mil_const c = { .type = mil_scalar(MIL_STRING), .strings = &s };
    char label[32];

    if (failed(b))
        return 0;
    snprintf(label, sizeof label, "const_string_%zu", b->names->consts.used);
    return shared_const(b, label, false, &c);
}

mil_ref mb_f16(struct mb *b, double v)
{
    struct mil_type t = mil_scalar(MIL_F16);
    unsigned char bytes[2];

    store_le16(bytes, f64_to_f16(v));
    return small_const(b, &t, bytes);
}

mil_ref mb_f32(struct mb *b, double v)
{
    struct mil_type t = mil_scalar(MIL_F32);
    unsigned char bytes[4];
    float f = (float)v;
    uint32_t bits;

    memcpy(&bits, &f, sizeof bits);
    store_le32(bytes, bits);
    return small_const(b, &t, bytes);
}

mil_ref mb_data(struct mb *b, const char *name, const struct mil_data *data)
{
    struct mil_const c = { .data = data };
    char label[sizeof b->next_name];

    if (failed(b))
        return 0;
    if (!data)
        return mb_fail(b, ERR_INPUT, "constant '%s' has no data",
                       name ? name : "");
    c.type = data->type;
    if (name)
        mb_name(b, "%s", name);
    if (failed(b))
        return 0;
    next_label(b, "const", label);
    return shared_const(b, label, true, &c);
}

/* ---- blocks ---- */

mil_ref mb_reshape(struct mb *b, mil_ref x, size_t rank, const int32_t *shape)
{
    return MB(b, reshape, .x = x, .shape = mb_ints(b, rank, shape));
}

mil_ref mb_conv1x1(struct mb *b, mil_ref x, mil_ref weight, mil_ref bias)
{
    return MB(b, conv, .x = x, .weight = weight, .bias = bias,
              .strides = MB_INTS(b, 1, 1), .pad_type = mb_string(b, "valid"),
              .pad = MB_INTS(b, 0, 0, 0, 0), .dilations = MB_INTS(b, 1, 1),
              .groups = mb_int(b, 1));
}
