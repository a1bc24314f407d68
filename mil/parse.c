/*
 * MIL text to programs: a hand-written reader of both dialects, for text of
 * any origin. Literals are read by parse_value.c. Every count is bounded by
 * the length of the text before memory is taken, nesting is bounded by the
 * rank limit and by MAX_TYPE_DEPTH.
 */
#include "mil/text.h"

#include <string.h>

#include "mil/parse_priv.h"
#include "mil/text_priv.h"

/* ---- lexing ---- */

int parse_fail_at(struct parse *c, size_t pos, const char *fmt, ...)
{
    size_t line = 1, column = 1;
    char text[512];
    va_list ap;

    for (size_t i = 0; i < pos && i < c->len; i++) {
        column = c->s[i] == '\n' ? 1 : column + 1;
        line += c->s[i] == '\n';
    }
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    return err_set(c->e, ERR_INPUT, "line %zu, column %zu: %s", line, column,
                   text);
}

int parse_peek(struct parse *c)
{
    while (c->pos < c->len && (c->s[c->pos] == ' ' || c->s[c->pos] == '\t' ||
                               c->s[c->pos] == '\n' || c->s[c->pos] == '\r'))
        c->pos++;
    return c->pos < c->len ? (unsigned char)c->s[c->pos] : -1;
}

bool parse_accept(struct parse *c, char want)
{
    if (parse_peek(c) != (unsigned char)want)
        return false;
    c->pos++;
    return true;
}

int parse_expect(struct parse *c, char want)
{
    int got = parse_peek(c);

    if (got == (unsigned char)want) {
        c->pos++;
        return 0;
    }
    if (got < 0)
        return parse_fail_at(c, c->pos, "expected '%c', found the end", want);
    if (got < 0x20 || got > 0x7e)
        return parse_fail_at(c, c->pos, "expected '%c', found byte 0x%02x",
                             want, (unsigned)got);
    return parse_fail_at(c, c->pos, "expected '%c', found '%c'", want, got);
}

static bool is_name_char(char ch, bool first)
{
    return (ch >= 'a' && ch <= 'z') || (ch >= 'A' && ch <= 'Z') || ch == '_' ||
           (!first && ((ch >= '0' && ch <= '9') || ch == '@'));
}

int parse_ident(struct parse *c, const char *what, struct slice *out)
{
    size_t start;

    parse_peek(c);
    start = c->pos;
    while (c->pos < c->len && is_name_char(c->s[c->pos], c->pos == start))
        c->pos++;
    *out = (struct slice){ c->s + start, c->pos - start };
    if (out->n == 0)
        return parse_fail_at(c, start, "expected %s", what);
    if (out->n > PARSE_NAME_MAX)
        return parse_fail_at(c, start, "a name of %zu characters, allowed: %d",
                             out->n, PARSE_NAME_MAX);
    return 0;
}

bool slice_is(struct slice s, const char *text)
{
    return strlen(text) == s.n && memcmp(s.p, text, s.n) == 0;
}

static char *keep(struct parse *c, struct slice s)
{
    return arena_strndup(&c->p->arena, s.p, s.n, c->e);
}

int parse_word(struct parse *c, const char *word)
{
    size_t pos;
    struct slice s;

    parse_peek(c);
    pos = c->pos;
    if (parse_ident(c, word, &s))
        return -1;
    if (!slice_is(s, word))
        return parse_fail_at(c, pos, "expected '%s', found '%.*s'", word,
                             (int)s.n, s.p);
    return 0;
}

/* ---- types ---- */

static int dtype_of(struct parse *c, struct slice s, size_t pos,
                    enum mil_dtype *out)
{
    char name[16];

    if (s.n < sizeof name) {
        memcpy(name, s.p, s.n);
        name[s.n] = '\0';
        if (mil_dtype_by_name(name, out))
            return 0;
    }
    return parse_fail_at(c, pos, "'%.*s' is no type", (int)s.n, s.p);
}

static int parse_dims(struct parse *c, struct mil_type *t)
{
    if (parse_expect(c, '['))
        return -1;
    if (parse_accept(c, ']'))
        return 0;
    do {
        int64_t d = MIL_DIM_UNKNOWN;

        if (!parse_accept(c, '?') && parse_int(c, 0, INT64_MAX, &d))
            return -1;
        if (t->rank == MIL_MAX_RANK)
            return parse_fail_at(c, c->pos, "a rank above %d", MIL_MAX_RANK);
        t->dims[t->rank++] = d;
    } while (parse_accept(c, ','));
    return parse_expect(c, ']');
}

int parse_type(struct parse *c, struct mil_type *t, bool *state)
{
    struct slice s;
    size_t pos;

    memset(t, 0, sizeof *t);
    parse_peek(c);
    pos = c->pos;
    if (parse_ident(c, "a type", &s))
        return -1;
    if (slice_is(s, "state") && state) {
        *state = true;
        if (parse_expect(c, '<') || parse_type(c, t, NULL))
            return -1;
        return parse_expect(c, '>');
    }
    if (!slice_is(s, "tensor"))
        return dtype_of(c, s, pos, &t->dtype);
    if (parse_expect(c, '<'))
        return -1;
    parse_peek(c);
    pos = c->pos;
    if (parse_ident(c, "an element type", &s) ||
        dtype_of(c, s, pos, &t->dtype) || parse_expect(c, ',') ||
        parse_dims(c, t))
        return -1;
    return parse_expect(c, '>');
}

/* A type of an attribute: only its brackets matter. */
static int skip_type(struct parse *c, int depth)
{
    struct mil_type t = { .rank = 0 };
    struct slice s;

    if (depth > MAX_TYPE_DEPTH)
        return parse_fail_at(c, c->pos, "types are nested deeper than %d",
                             MAX_TYPE_DEPTH);
    if (parse_ident(c, "a type", &s))
        return -1;
    if (!parse_accept(c, '<'))
        return 0;
    do {
        int ch = parse_peek(c);

        if (ch == '[') {
            t.rank = 0;
            if (parse_dims(c, &t))
                return -1;
        } else if (ch == '?') {
            c->pos++;
        } else if (skip_type(c, depth + 1)) {
            return -1;
        }
    } while (parse_accept(c, ','));
    return parse_expect(c, '>');
}

/* ---- attributes of programs and functions ---- */

/* {{"k", "v"}, ...} */
static int parse_build_info(struct parse *c)
{
    if (parse_expect(c, '{'))
        return -1;
    if (parse_accept(c, '}'))
        return 0;
    do {
        const char *key, *value;

        if (c->p->n_build_info == MAX_LISTED)
            return parse_fail_at(c, c->pos, "more than %d pairs", MAX_LISTED);
        if (parse_expect(c, '{') || parse_string(c, &key) ||
            parse_expect(c, ',') || parse_string(c, &value) ||
            parse_expect(c, '}') ||
            mil_program_set_build_info(c->p, key, value, c->e))
            return -1;
    } while (parse_accept(c, ','));
    return parse_expect(c, '}');
}

static int program_attributes(struct parse *c)
{
    if (!parse_accept(c, '['))
        return 0;
    if (parse_word(c, "buildInfo") || parse_expect(c, '=') || skip_type(c, 0) ||
        parse_expect(c, '(') || parse_build_info(c) || parse_expect(c, ')'))
        return -1;
    return parse_expect(c, ']');
}

/* What one function says of the shapes of its inputs. */
struct shape_row {
    mil_ref input;
    struct mil_shapes s; /* list: of this row */
    struct mil_type *list;
    size_t n, cap;
    bool first, range; /* given */
};
struct shape_table {
    struct shape_row *rows;
    size_t n, cap;
};

static struct shape_row *row_of(struct parse *c, struct shape_table *t,
                                mil_ref input)
{
    void *items = t->rows;

    for (size_t i = 0; i < t->n; i++) {
        if (t->rows[i].input == input)
            return &t->rows[i];
    }
    if (t->n == MAX_LISTED) {
        parse_fail_at(c, c->pos, "more than %d flexible inputs", MAX_LISTED);
        return NULL;
    }
    if (mem_grow(&items, &t->cap, t->n, sizeof *t->rows, c->e))
        return NULL;
    t->rows = items;
    t->rows[t->n] = (struct shape_row){ .input = input };
    return &t->rows[t->n++];
}

static int add_shape(struct parse *c, struct shape_row *row,
                     const struct mil_type *shape)
{
    void *items = row->list;

    if (row->n == INT32_MAX)
        return parse_fail_at(c, c->pos, "more than %d shapes", INT32_MAX);
    if (mem_grow(&items, &row->cap, row->n, sizeof *shape, c->e))
        return -1;
    row->list = items;
    row->list[row->n++] = *shape;
    return 0;
}

/* "input", */
static struct shape_row *parse_input(struct parse *c, struct shape_table *t)
{
    const char *input;
    uint32_t *v;
    size_t pos = c->pos;

    if (parse_string(c, &input) || parse_expect(c, ','))
        return NULL;
    v = name_map_find(&c->names, input);
    if (v)
        return row_of(c, t, *v);
    parse_fail_at(c, pos, "there is no input '%.64s'", input);
    return NULL;
}

static int misfit(struct parse *c, size_t pos, const struct shape_row *row)
{
    return parse_fail_at(c, pos, "the shape does not fit '%.64s'",
                         mil_value(c->f, row->input)->name);
}

/* {{"input", [1, 4]}, ...}: the defaults, or one configuration. */
static int parse_shapes(struct parse *c, struct shape_table *t, bool defaults)
{
    if (parse_expect(c, '{'))
        return -1;
    do {
        struct mil_type shape = { .rank = 0 };
        const struct mil_type *declared;
        struct shape_row *row;
        size_t pos;

        if (parse_expect(c, '{'))
            return -1;
        pos = c->pos;
        row = parse_input(c, t);
        if (!row || parse_dims(c, &shape) || parse_expect(c, '}'))
            return -1;
        declared = &mil_value(c->f, row->input)->type;
        if (!mil_type_is_static(&shape) || shape.rank != declared->rank ||
            (defaults && row->first))
            return misfit(c, pos, row);
        shape.dtype = declared->dtype;
        if (defaults)
            row->s.first = shape;
        else if (add_shape(c, row, &shape))
            return -1;
        row->first = row->first || defaults;
    } while (parse_accept(c, ','));
    return parse_expect(c, '}');
}

/* {{"id", {{"input", [1, 4]}, ...}}, ...} */
static int parse_configurations(struct parse *c, struct shape_table *t)
{
    if (parse_expect(c, '{'))
        return -1;
    do {
        const char *id;

        if (parse_expect(c, '{') || parse_string(c, &id) ||
            parse_expect(c, ',') || parse_shapes(c, t, false) ||
            parse_expect(c, '}'))
            return -1;
    } while (parse_accept(c, ','));
    return parse_expect(c, '}');
}

/* [[0, 2], [0, 4]] */
static int parse_bounds(struct parse *c, struct mil_shapes *s, int *rank)
{
    if (parse_expect(c, '['))
        return -1;
    do {
        if (*rank == MIL_MAX_RANK)
            return parse_fail_at(c, c->pos, "a rank above %d", MIL_MAX_RANK);
        if (parse_expect(c, '[') ||
            parse_int(c, 0, INT64_MAX, &s->low[*rank]) ||
            parse_expect(c, ',') ||
            parse_int(c, INT64_MIN, INT64_MAX, &s->high[*rank]) ||
            parse_expect(c, ']'))
            return -1;
        if (s->high[*rank] < 0)
            s->high[*rank] = -1;
        ++*rank;
    } while (parse_accept(c, ','));
    return parse_expect(c, ']');
}

/* {{"input", [[0, 2], [0, 4]]}, ...} */
static int parse_ranges(struct parse *c, struct shape_table *t)
{
    if (parse_expect(c, '{'))
        return -1;
    do {
        struct shape_row *row;
        size_t pos;
        int rank = 0;

        if (parse_expect(c, '{'))
            return -1;
        pos = c->pos;
        row = parse_input(c, t);
        if (!row || parse_bounds(c, &row->s, &rank) || parse_expect(c, '}'))
            return -1;
        if (rank != mil_value(c->f, row->input)->type.rank || row->range)
            return misfit(c, pos, row);
        row->range = true;
    } while (parse_accept(c, ','));
    return parse_expect(c, '}');
}

static int keep_row(struct parse *c, struct shape_row *row)
{
    if (row->range && row->n)
        return parse_fail_at(c, c->pos,
                             "'%.64s' accepts listed shapes and a range",
                             mil_value(c->f, row->input)->name);
    if (!row->first)
        return parse_fail_at(c, c->pos, "'%.64s' has no default shape",
                             mil_value(c->f, row->input)->name);
    row->s.list = row->list;
    row->s.n = (int)row->n;
    if (!row->range && !(row->n && mil_shapes_take(&row->s, &row->s.first))) {
        if (add_shape(c, row, &row->s.first))
            return -1;
        memmove(row->list + 1, row->list, (row->n - 1) * sizeof *row->list);
        row->list[0] = row->s.first;
    }
    row->s.list = row->list;
    row->s.n = (int)row->n;
    return mil_set_shapes(c->f, row->input, &row->s, c->e);
}

static int flexible_parts(struct parse *c, struct shape_table *t)
{
    do {
        const char *key;
        size_t pos;
        int rc;

        if (parse_expect(c, '('))
            return -1;
        parse_peek(c);
        pos = c->pos;
        if (parse_string(c, &key) || parse_expect(c, ','))
            return -1;
        if (strcmp(key, "DefaultShapes") == 0)
            rc = parse_shapes(c, t, true);
        else if (strcmp(key, "EnumeratedShapes") == 0)
            rc = parse_configurations(c, t);
        else if (strcmp(key, "RangeDims") == 0)
            rc = parse_ranges(c, t);
        else
            return parse_fail_at(c, pos,
                                 "'%.64s' is not known in a " TEXT_FLEXIBLE,
                                 key);
        if (rc || parse_expect(c, ')'))
            return -1;
    } while (parse_accept(c, ','));
    for (size_t i = 0; i < t->n; i++) {
        if (keep_row(c, &t->rows[i]))
            return -1;
    }
    return 0;
}

static int function_attributes(struct parse *c)
{
    struct shape_table t = { NULL, 0, 0 };
    int rc = -1;

    if (!parse_accept(c, '['))
        return 0;
    if (parse_word(c, TEXT_FLEXIBLE) == 0 && parse_expect(c, '=') == 0 &&
        skip_type(c, 0) == 0 && parse_expect(c, '(') == 0 &&
        parse_expect(c, '(') == 0 && flexible_parts(c, &t) == 0 &&
        parse_expect(c, ')') == 0 && parse_expect(c, ')') == 0)
        rc = parse_expect(c, ']');
    for (size_t i = 0; i < t.n; i++)
        mem_free(t.rows[i].list);
    mem_free(t.rows);
    return rc;
}

/* ---- statements ---- */

static int define(struct parse *c, size_t pos, const char *name, mil_ref r)
{
    if (name_map_find(&c->names, name))
        return parse_fail_at(c, pos, "'%.64s' is defined twice", name);
    return name_map_set(&c->names, name, r, c->e);
}

static int use(struct parse *c, mil_ref *out)
{
    struct slice s;
    uint32_t *found;
    size_t pos;

    parse_peek(c);
    pos = c->pos;
    if (parse_ident(c, "a value", &s))
        return -1;
    found = name_map_get(&c->names, s.p, s.n);
    if (!found)
        return parse_fail_at(c, pos, "'%.*s' is not defined",
                             s.n < 64 ? (int)s.n : 64, s.p);
    *out = *found;
    return 0;
}

/* A name, or a typed literal. */
static int parse_binding(struct parse *c, mil_ref *out)
{
    size_t pos;
    struct slice s;
    const struct mil_const *k;
    int next;

    parse_peek(c);
    pos = c->pos;
    if (parse_ident(c, "a value", &s))
        return -1;
    next = parse_peek(c);
    c->pos = pos;
    if (next != '<' && next != '(')
        return use(c, out);
    k = parse_value(c);
    if (!k)
        return -1;
    *out = mil_add_value(c->f, MIL_V_LITERAL, NULL, &k->type, c->e);
    if (!*out)
        return -1;
    mil_value(c->f, *out)->konst = k;
    return 0;
}

static int add_binding(struct parse *c)
{
    void *items = c->refs;
    mil_ref r = 0;

    if (parse_binding(c, &r) ||
        mem_grow(&items, &c->cap_refs, c->n_refs, sizeof *c->refs, c->e))
        return -1;
    c->refs = items;
    c->refs[c->n_refs++] = r;
    return 0;
}

/* Several bindings stand in parentheses. */
static int parse_bindings(struct parse *c)
{
    if (!parse_accept(c, '('))
        return add_binding(c);
    if (parse_accept(c, ')'))
        return 0;
    do {
        if (add_binding(c))
            return -1;
    } while (parse_accept(c, ','));
    return parse_expect(c, ')');
}

/* key = value. `name` and a const's `val` are no arguments. */
static int parse_arg(struct parse *c, struct statement *st, bool attribute)
{
    void *items = c->args;
    struct arg_slot slot = { .attribute = attribute };

    parse_peek(c);
    slot.pos = c->pos;
    if (parse_ident(c, "a parameter", &slot.name) || parse_expect(c, '='))
        return -1;
    if (attribute && slice_is(slot.name, "name")) {
        const struct mil_const *k = parse_value(c);

        if (!k)
            return -1;
        if (k->type.dtype != MIL_STRING || k->type.rank != 0 || st->name)
            return parse_fail_at(c, slot.pos, "'name' must be one string");
        st->name = k->strings[0];
        return 0;
    }
    if (attribute && st->is_const && slice_is(slot.name, "val")) {
        if (st->konst)
            return parse_fail_at(c, slot.pos, "'val' is given twice");
        st->konst = parse_value(c);
        return st->konst ? 0 : -1;
    }
    slot.first = c->n_refs;
    if (parse_bindings(c) ||
        mem_grow(&items, &c->cap_args, c->n_args, sizeof *c->args, c->e))
        return -1;
    c->args = items;
    slot.n = c->n_refs - slot.first;
    c->args[c->n_args++] = slot;
    return 0;
}

static int parse_arg_list(struct parse *c, struct statement *st, char close,
                          bool attribute)
{
    if (parse_accept(c, close))
        return 0;
    do {
        if (parse_arg(c, st, attribute))
            return -1;
    } while (parse_accept(c, ','));
    return parse_expect(c, close);
}

static int parse_outputs(struct parse *c)
{
    do {
        void *items = c->outs;
        struct out_slot slot;

        if (parse_type(c, &slot.type, NULL))
            return -1;
        parse_peek(c);
        slot.pos = c->pos;
        if (parse_ident(c, "a name", &slot.name) ||
            mem_grow(&items, &c->cap_outs, c->n_outs, sizeof *c->outs, c->e))
            return -1;
        c->outs = items;
        c->outs[c->n_outs++] = slot;
    } while (parse_accept(c, ','));
    return parse_expect(c, '=');
}

/* The row that describes a statement. NULL with *foreign set: none does. */
static const struct mil_op_info *
row_for(struct parse *c, const struct statement *st, bool *foreign)
{
    const struct mil_op_info *info = mil_op_by_name(st->type);
    bool raw = c->o && c->o->raw;

    *foreign = !info;
    for (size_t i = 0; info && i < c->n_args; i++) {
        const struct arg_slot *a = &c->args[i];
        char name[64];
        bool known = false;

        if (a->name.n < sizeof name && !a->attribute) {
            int p;

            memcpy(name, a->name.p, a->name.n);
            name[a->name.n] = '\0';
            p = mil_param_index(info, name);
            known = p >= 0 &&
                    (a->n == 1 || !raw || (info->params[p].flags & MIL_P_LIST));
        }
        if (known)
            continue;
        /* Parameters differ between opsets; in ours they must be right. */
        if (strcmp(c->f->opset, "CoreML8") == 0 && !raw) {
            parse_fail_at(c, a->pos, "%s has no %s '%.*s'", info->name,
                          a->attribute ? "attribute" : "parameter",
                          a->name.n < 64 ? (int)a->name.n : 64, a->name.p);
            return NULL;
        }
        *foreign = true;
        return NULL;
    }
    return info;
}

static int set_known(struct parse *c, struct mil_op *op,
                     const struct mil_op_info *info)
{
    for (size_t i = 0; i < c->n_args; i++) {
        const struct arg_slot *a = &c->args[i];
        char name[64];
        int at;

        memcpy(name, a->name.p, a->name.n);
        name[a->name.n] = '\0';
        at = mil_param_index(info, name);
        if (op->args[at].n)
            return parse_fail_at(c, a->pos, "parameter '%s' is given twice",
                                 name);
        if (mil_set_arg(c->f, op, at, c->refs + a->first, (uint32_t)a->n, c->e))
            return -1;
    }
    return 0;
}

static int set_foreign(struct parse *c, struct mil_op *op,
                       const struct statement *st)
{
    struct mil_foreign foreign = { .type = st->type };
    struct mil_named_arg *args;
    int rc = -1;

    if (c->n_args > MAX_LISTED)
        return parse_fail_at(c, st->pos, "more than %d parameters", MAX_LISTED);
    args = mem_alloc(c->n_args, sizeof *args, c->e);
    if (!args)
        return -1;
    for (size_t i = 0; i < c->n_args; i++) {
        const struct arg_slot *a = &c->args[i];

        args[i].name = keep(c, a->name);
        args[i].arg = (struct mil_arg){ c->refs + a->first, (uint32_t)a->n };
        args[i].attribute = a->attribute;
        if (!args[i].name)
            goto out;
        for (size_t j = 0; j < i; j++) {
            if (strcmp(args[j].name, args[i].name) == 0) {
                parse_fail_at(c, a->pos, "parameter '%.64s' is given twice",
                              args[i].name);
                goto out;
            }
        }
    }
    foreign.args = args;
    foreign.n_args = (uint32_t)c->n_args;
    rc = mil_set_foreign(c->f, op, &foreign, c->e);
out:
    mem_free(args);
    return rc;
}

static int add_statement(struct parse *c, const struct statement *st)
{
    const struct mil_op_info *info;
    struct mil_op *op;
    bool foreign;

    info = row_for(c, st, &foreign);
    if (!info && !foreign)
        return -1;
    if (st->is_const && (!st->konst || c->n_args || c->n_outs != 1))
        return parse_fail_at(c, st->pos,
                             "a const has one output and 'val', nothing else");
    op = mil_add_op(c->f, info ? info->code : MIL_OP_INVALID, st->name, c->e);
    if (!op || (info ? set_known(c, op, info) : set_foreign(c, op, st)))
        return -1;
    for (size_t i = 0; i < c->n_outs; i++) {
        const char *name = keep(c, c->outs[i].name);
        mil_ref r;

        r = name ? mil_add_output(c->f, op, name, &c->outs[i].type, c->e) : 0;
        if (!r || define(c, c->outs[i].pos, mil_value(c->f, r)->name, r))
            return -1;
        mil_value(c->f, r)->konst = st->konst;
    }
    return 0;
}

static int parse_statement(struct parse *c)
{
    struct statement st = { .name = NULL };
    struct slice s;

    parse_peek(c);
    st.pos = c->pos;
    c->n_args = c->n_outs = c->n_refs = 0;
    if (parse_ident(c, "a statement", &s))
        return -1;
    if (parse_peek(c) != '(') {
        c->pos = st.pos;
        if (parse_outputs(c) || parse_ident(c, "an operation", &s))
            return -1;
    }
    st.type = keep(c, s);
    if (!st.type)
        return -1;
    st.is_const = strcmp(st.type, "const") == 0;
    if (parse_expect(c, '(') || parse_arg_list(c, &st, ')', false))
        return -1;
    if (parse_accept(c, '[') && parse_arg_list(c, &st, ']', true))
        return -1;
    if (parse_expect(c, ';'))
        return -1;
    return add_statement(c, &st);
}

/* ---- functions ---- */

static int parse_params(struct parse *c)
{
    if (parse_accept(c, ')'))
        return 0;
    do {
        struct mil_type t;
        bool state = false;
        struct slice s;
        const char *name;
        size_t pos;
        mil_ref r;

        if (parse_type(c, &t, &state))
            return -1;
        parse_peek(c);
        pos = c->pos;
        if (parse_ident(c, "a name", &s))
            return -1;
        name = keep(c, s);
        if (!name)
            return -1;
        r = mil_add_value(c->f, state ? MIL_V_STATE : MIL_V_INPUT, name, &t,
                          c->e);
        if (!r || define(c, pos, mil_value(c->f, r)->name, r))
            return -1;
    } while (parse_accept(c, ','));
    return parse_expect(c, ')');
}

/* ios18 is CoreML8; other words stay what they are. */
static int parse_opset(struct parse *c)
{
    struct slice s;
    unsigned n = 0;

    if (parse_expect(c, '<') || parse_ident(c, "an opset", &s) ||
        parse_expect(c, '>'))
        return -1;
    if (s.n == 5 && memcmp(s.p, "ios", 3) == 0)
        n = (unsigned)(s.p[3] - '0') * 10 + (unsigned)(s.p[4] - '0');
    if (n >= 11 && n <= 99)
        c->f->opset = arena_printf(&c->p->arena, c->e, "CoreML%u", n - 10);
    else
        c->f->opset = keep(c, s);
    return c->f->opset ? 0 : -1;
}

static int parse_result(struct parse *c)
{
    if (parse_expect(c, '}') || parse_expect(c, '-') || parse_expect(c, '>') ||
        parse_expect(c, '('))
        return -1;
    if (!parse_accept(c, ')')) {
        do {
            mil_ref r = 0;

            if (use(c, &r) || mil_add_function_output(c->f, r, c->e))
                return -1;
        } while (parse_accept(c, ','));
        if (parse_expect(c, ')'))
            return -1;
    }
    return parse_expect(c, ';');
}

static int parse_function(struct parse *c)
{
    struct slice s;
    const char *name;
    size_t pos;

    if (parse_word(c, "func"))
        return -1;
    parse_peek(c);
    pos = c->pos;
    if (parse_ident(c, "a name", &s))
        return -1;
    name = keep(c, s);
    if (!name)
        return -1;
    if (c->p->n_functions == MAX_LISTED)
        return parse_fail_at(c, pos, "more than %d functions", MAX_LISTED);
    if (mil_program_find(c->p, name))
        return parse_fail_at(c, pos, "function '%.64s' is defined twice", name);
    c->f = mil_program_add(c->p, name, c->e);
    if (!c->f || parse_opset(c) || parse_expect(c, '(') || parse_params(c) ||
        function_attributes(c) || parse_expect(c, '{'))
        return -1;
    while (parse_peek(c) != '}') {
        if (parse_statement(c))
            return -1;
    }
    if (parse_result(c))
        return -1;
    name_map_release(&c->names);
    return 0;
}

/* ---- the program ---- */

/* 1.0 belongs to versions 6 to 8, told apart by the opsets. */
static void set_version(struct parse *c, bool older)
{
    int v = older ? 6 : 9;

    for (size_t i = 0; i < c->p->n_functions; i++) {
        int n = mil_opset_number(c->p->functions[i]->opset) + 1;

        if (n > v)
            v = n;
    }
    c->p->spec_version = v;
}

static int parse_program(struct parse *c)
{
    int64_t minor;

    if (parse_word(c, "program") || parse_expect(c, '('))
        return -1;
    if (parse_peek(c) != '1')
        return parse_fail_at(c, c->pos, "expected a version 1.x");
    c->pos++;
    if (parse_expect(c, '.') || parse_int(c, 0, 99, &minor) ||
        parse_expect(c, ')') || program_attributes(c) || parse_expect(c, '{'))
        return -1;
    while (parse_peek(c) != '}') {
        if (parse_function(c))
            return -1;
    }
    c->pos++;
    if (parse_peek(c) >= 0)
        return parse_fail_at(c, c->pos, "text after the program's end");
    set_version(c, minor == 0);
    return 0;
}

struct mil_program *text_parse(const char *text, size_t len,
                               const struct text_parse_options *o,
                               struct err *e)
{
    struct parse c = { .s = text, .len = len, .o = o, .e = e };
    int rc = -1;

    c.p = mil_program_new(e);
    if (c.p)
        rc = parse_program(&c);
    name_map_release(&c.names);
    mem_free(c.args);
    mem_free(c.outs);
    mem_free(c.refs);
    if (rc) {
        mil_program_free(c.p);
        return NULL;
    }
    return c.p;
}
