/*
 * The op table and its inference rules: runs the cases of tests/ops, whose
 * format is described in the README there.
 */
#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "converter/base/io.h"
#include "mil/text.h"

/* One case as it is turned into a function of one op. */
struct build {
    struct buf params, consts, args;
    int n;
};

/* fp16[1,8] -> tensor<fp16, [1,8]>; fp16 stays. */
static void put_type(struct buf *out, const char *s, size_t n)
{
    const char *bracket = memchr(s, '[', n);

    if (!bracket)
        buf_printf(out, "%.*s", (int)n, s);
    else
        buf_printf(out, "tensor<%.*s, %.*s>", (int)(bracket - s), s,
                   (int)(n - (size_t)(bracket - s)), bracket);
}

static int count_items(const char *s, size_t n)
{
    int items = 1;

    for (size_t i = 0; i < n; i++)
        items += s[i] == ',';
    return items;
}

/* {1,2} or int8{1,2} */
static void put_vector(struct buf *out, const char *s, size_t n)
{
    const char *open = memchr(s, '{', n);
    size_t head = (size_t)(open - s), body = n - head - 2;
    const char *type = open[1] == 't' || open[1] == 'f' ? "bool" : "int32";

    if (head)
        buf_printf(out, "tensor<%.*s, ", (int)head, s);
    else
        buf_printf(out, "tensor<%s, ", type);
    buf_printf(out, "[%d]>([%.*s])", count_items(open + 1, body), (int)body,
               open + 1);
}

static void put_value(struct build *b, const char *s, size_t n)
{
    struct buf *args = &b->args;

    if (memchr(s, '{', n)) {
        put_vector(args, s, n);
    } else if (s[0] == '"') {
        buf_printf(args, "string(%.*s)", (int)n, s);
    } else if ((n == 4 && memcmp(s, "true", 4) == 0) ||
               (n == 5 && memcmp(s, "false", 5) == 0)) {
        buf_printf(args, "bool(%.*s)", (int)n, s);
    } else if (s[0] == '-' || (s[0] >= '0' && s[0] <= '9')) {
        buf_printf(args, "int32(%.*s)", (int)n, s);
    } else if (s[n - 1] == ')') {
        buf_printf(args, "%.*s", (int)n, s);
    } else if (s[0] == '#') {
        put_type(&b->consts, s + 1, n - 1);
        buf_printf(&b->consts, " k%d = const()[val = ", b->n);
        put_type(&b->consts, s + 1, n - 1);
        buf_puts(&b->consts, "(BLOBFILE(path = string(\"w\"), offset = "
                             "uint64(64)))];\n");
        buf_printf(args, "k%d", b->n++);
    } else {
        buf_puts(&b->params, b->params.len ? ", " : "");
        if (s[0] == '$') {
            buf_puts(&b->params, "state<");
            put_type(&b->params, s + 1, n - 1);
            buf_puts(&b->params, ">");
        } else {
            put_type(&b->params, s, n);
        }
        buf_printf(&b->params, " v%d", b->n);
        buf_printf(args, "v%d", b->n++);
    }
}

/* PARAM=VALUE or PARAM=(VALUE;VALUE) */
static void put_arg(struct build *b, const char *s, size_t n)
{
    const char *eq = memchr(s, '=', n), *end = s + n;

    cr_assert_not_null(eq, "no '=' in '%.*s'", (int)n, s);
    buf_printf(&b->args, "%s%.*s = ", b->args.len ? ", " : "", (int)(eq - s),
               s);
    s = eq + 1;
    if (*s != '(') {
        put_value(b, s, (size_t)(end - s));
        return;
    }
    buf_addc(&b->args, '(');
    for (s++, end--; s < end;) {
        const char *next = memchr(s, ';', (size_t)(end - s));

        if (!next)
            next = end;
        put_value(b, s, (size_t)(next - s));
        buf_puts(&b->args, next < end ? ", " : "");
        s = next + 1;
    }
    buf_addc(&b->args, ')');
}

static void put_program(struct buf *text, struct build *b, const char *op)
{
    bool is_const = strcmp(op, "const") == 0;

    buf_printf(text,
               "program(1.3) { func main<ios18>(%s) {\n%s%s%s(%s)%s%s%s;\n"
               "} -> (); }",
               buf_text(&b->params), buf_text(&b->consts),
               strcmp(op, "write_state") ? "fp16 y = " : "", op,
               is_const ? "" : buf_text(&b->args), is_const ? "[" : "",
               is_const ? buf_text(&b->args) : "", is_const ? "]" : "");
}

/* fp16[1,8] fp16, or "none". */
static void put_types(struct buf *out, const struct mil_type *t, uint32_t n)
{
    if (n == 0)
        buf_puts(out, "none");
    for (uint32_t i = 0; i < n; i++) {
        buf_printf(out, "%s%s", i ? " " : "", mil_dtype_name(t[i].dtype));
        for (int d = 0; d < t[i].rank; d++) {
            buf_puts(out, d ? "," : "[");
            if (t[i].dims[d] < 0)
                buf_addc(out, '?');
            else
                buf_printf(out, "%lld", (long long)t[i].dims[d]);
        }
        buf_puts(out, t[i].rank ? "]" : "");
    }
}

/* Types or the error of the last op of a program text. */
static enum mil_opcode run(const char *text, struct buf *out)
{
    struct err e = ERR_INIT;
    struct mil_program *p = text_parse(text, strlen(text), NULL, &e);
    struct mil_type types[16];
    const struct mil_function *f;
    const struct mil_op *op;
    enum mil_opcode code;
    uint32_t n;

    cr_assert_not_null(p, "%s\n%s", e.text, text);
    f = p->functions[0];
    op = &f->ops[f->n_ops - 1];
    code = op->code;
    if (mil_op_out_count(f, op, &n, &e) == 0) {
        cr_assert_leq(n, 16);
        if (mil_infer_op(f, op, types, n, &e) == 0)
            put_types(out, types, n);
    }
    if (e.code)
        buf_printf(out, "FAIL: %s", e.text);
    mil_program_free(p);
    return code;
}

static bool matches(const char *want, const char *got)
{
    if (strncmp(want, "FAIL: ", 6) == 0)
        return strncmp(got, "FAIL: ", 6) == 0 &&
               strstr(got + 6, want + 6) != NULL;
    return strcmp(want, got) == 0;
}

struct coverage {
    int good[MIL_OP_COUNT], bad[MIL_OP_COUNT];
};

static void run_case(const char *file, int number, char *line,
                     struct coverage *c)
{
    struct build b = { BUF_INIT, BUF_INIT, BUF_INIT, 0 };
    struct buf text = BUF_INIT, got = BUF_INIT;
    char *arrow = strstr(line, " -> "), *op = line, *s;
    enum mil_opcode code;

    cr_assert_not_null(arrow, "%s:%d: no arrow", file, number);
    *arrow = '\0';
    s = line + strcspn(line, " ");
    while (*s) {
        size_t n;

        *s++ = '\0';
        n = strcspn(s, " ");
        put_arg(&b, s, n);
        s += n;
    }
    put_program(&text, &b, op);
    code = run(buf_text(&text), &got);
    cr_expect(matches(arrow + 4, buf_text(&got)),
              "%s:%d: %s\n  expected %s\n  got      %s\n%s", file, number, op,
              arrow + 4, buf_text(&got), buf_text(&text));
    (strncmp(arrow + 4, "FAIL: ", 6) ? c->good : c->bad)[code]++;
    buf_release(&b.params);
    buf_release(&b.consts);
    buf_release(&b.args);
    buf_release(&text);
    buf_release(&got);
}

static int run_file(const char *path, struct coverage *c)
{
    struct buf text = BUF_INIT;
    struct err e = ERR_INIT;
    int number = 1, cases = 0;
    char *line, *next;

    cr_assert_eq(io_read_file(path, 1 << 20, &text, &e), 0, "%s", e.text);
    for (line = text.data; line; line = next, number++) {
        next = strchr(line, '\n');
        if (next)
            *next++ = '\0';
        if (line[0] == '\0' || line[0] == '#')
            continue;
        run_case(io_basename(path), number, line, c);
        cases++;
    }
    buf_release(&text);
    return cases;
}

Test(mil_ops, cases_hold_and_cover_every_row)
{
    struct coverage c;
    struct err e = ERR_INIT;
    const char *dir = ANEMLL_SOURCE_DIR "/tests/ops";
    char **names;
    size_t n;
    int cases = 0;

    memset(&c, 0, sizeof c);
    cr_assert_eq(io_list(dir, &names, &n, &e), 0, "%s", e.text);
    for (size_t i = 0; i < n; i++) {
        char path[1000];

        if (!strstr(names[i], ".case"))
            continue;
        snprintf(path, sizeof path, "%s/%s", dir, names[i]);
        cases += run_file(path, &c);
    }
    io_list_free(names, n);
    cr_assert_gt(cases, 300);
    for (int i = MIL_OP_INVALID + 1; i < MIL_OP_COUNT; i++) {
        const struct mil_op_info *info = mil_op_info((enum mil_opcode)i);

        cr_expect(c.good[i] || (info->flags & MIL_O_BLOCKS),
                  "%s has no case that succeeds", info->name);
        cr_expect(c.bad[i] || i == MIL_OP_const, "%s has no case that fails",
                  info->name);
    }
}

Test(mil_ops, the_table_is_sound)
{
    for (int i = MIL_OP_INVALID + 1; i < MIL_OP_COUNT; i++) {
        const struct mil_op_info *info = mil_op_info((enum mil_opcode)i);

        cr_assert_eq((int)info->code, i);
        cr_assert_eq(mil_op_by_name(info->name), info);
        cr_assert_leq(info->n_params, MIL_MAX_PARAMS);
        cr_assert(info->since >= 4 && info->since <= 9);
        for (int k = 0; k < info->n_params; k++) {
            unsigned flags = info->params[k].flags;

            cr_assert_eq(mil_param_index(info, info->params[k].name), k);
            cr_assert(!(flags & MIL_P_SCALAR) || !(flags & MIL_P_VECTOR));
            cr_assert((flags & MIL_P_INLINE) == 0 ||
                      (info->flags & MIL_O_CONSTEXPR));
        }
    }
    cr_assert_null(mil_op_by_name("coreml_update_state"));
    cr_assert_eq(mil_param_index(mil_op_info(MIL_OP_conv), "no"), -1);
}
