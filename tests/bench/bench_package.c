/*
 * Speed of writing a package: bf16 bytes of a file, converted to half, as 25
 * constants, against a plain copy of the same bytes; then of opening it and
 * of reading all its constants.
 *
 *   bench_package [DIR] [MEGABYTES]
 *
 * Both the copy and the package are synced to the disk. The best of three,
 * by the clock and by processor time.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "converter/base/io.h"
#include "converter/base/num.h"
#include "schema/package.h"

#define PARTS 25
#define RUNS 3

static double now(void)
{
    struct timespec t = { 0 };

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static double processor(void)
{
    return (double)clock() / CLOCKS_PER_SEC;
}

static void need(int rc, const struct err *e)
{
    if (rc == 0)
        return;
    fprintf(stderr, "bench_package: %s\n", e->text);
    exit(1);
}

struct part {
    const struct io_file *file;
    uint64_t base;
    int code;
};

static int read_part(void *cookie, uint64_t at, void *dst, size_t n,
                     struct err *e)
{
    const struct part *p = cookie;

    if (io_pread(p->file, dst, n, p->base + at, e))
        return -1;
    num_bf16_to_f16(dst, dst, n / 2);
    return 0;
}

static struct part parts[PARTS];
static struct mil_data datas[PARTS];

static struct mil_program *make(const struct io_file *f, struct err *e)
{
    struct mil_program *p = mil_program_new(e);
    struct mil_function *fn = p ? mil_program_add(p, "main", e) : NULL;
    int64_t n = (int64_t)(f->size / PARTS / 2), one = 1;
    struct mil_type small = mil_type_make(MIL_F16, 1, &one);
    struct mil_op *op;
    mil_ref x, y;
    int i;

    need(fn ? 0 : -1, e);
    x = mil_add_value(fn, MIL_V_INPUT, "x", &small, e);
    for (i = 0; i < PARTS; i++) {
        struct mil_const k = { 0 };
        char name[16];

        parts[i].file = f;
        parts[i].base = (uint64_t)i * (uint64_t)n * 2;
        datas[i].type = mil_type_make(MIL_F16, 1, &n);
        datas[i].bytes = (uint64_t)n * 2;
        datas[i].read = read_part;
        datas[i].cookie = &parts[i];
        k.type = datas[i].type;
        k.data = &datas[i];
        snprintf(name, sizeof(name), "w%d", i);
        op = mil_add_op(fn, MIL_OP_const, name, e);
        y = op ? mil_add_output(fn, op, name, &k.type, e) : 0;
        need(y ? 0 : -1, e);
        mil_value(fn, y)->konst = mil_copy_const(p, &k, e);
    }
    op = mil_add_op(fn, MIL_OP_relu, "y", e);
    need(op ? mil_set_arg(fn, op, 0, &x, 1, e) : -1, e);
    y = mil_add_output(fn, op, "y", &small, e);
    need(mil_add_function_output(fn, y, e), e);
    return p;
}

static void fill(const char *path, uint64_t bytes)
{
    static uint16_t block[1 << 19];
    struct io_out o = IO_OUT_INIT;
    struct err e = ERR_INIT;
    uint64_t seed = 1, done;
    size_t i;

    need(io_out_open(&o, path, &e), &e);
    for (done = 0; done < bytes; done += sizeof(block)) {
        for (i = 0; i < sizeof(block) / 2; i++) {
            seed = seed * 6364136223846793005u + 1442695040888963407u;
            /* finite, around 2^-6 */
            block[i] = (uint16_t)(0x3c00 | (seed >> 40 & 0x80ff));
        }
        need(io_out_write(&o, block, sizeof(block), &e), &e);
    }
    need(io_out_finish(&o, &e), &e);
    io_out_release(&o);
}

static void read_all(const char *path)
{
    struct err e = ERR_INIT;
    static uint8_t room[1 << 20];
    double t0 = now(), t1;
    struct pkg *k = pkg_open(path, &e);
    const struct mil_function *f;
    uint64_t sum = 0;
    size_t i;

    need(k ? 0 : -1, &e);
    t1 = now();
    f = pkg_program(k)->functions[0];
    for (i = 0; i < f->n_ops; i++) {
        const struct mil_const *c = mil_value(f, f->ops[i].outs[0])->konst;
        uint64_t at;

        for (at = 0; c && c->data && at < c->data->bytes; at += sizeof(room)) {
            uint64_t n = c->data->bytes - at;

            n = n < sizeof(room) ? n : sizeof(room);
            need(c->data->read(c->data->cookie, at, room, (size_t)n, &e), &e);
            sum += n;
        }
    }
    printf("open %.4f s, read %.2f GB/s\n", t1 - t0,
           (double)sum / (now() - t1) / 1e9);
    pkg_close(k);
}

int main(int argc, char **argv)
{
    const char *dir = argc > 1 ? argv[1] : "/tmp";
    uint64_t mb = argc > 2 ? strtoull(argv[2], NULL, 10) : 1200, bytes;
    char from[512], to[512];
    struct io_file f = IO_FILE_INIT;
    struct err e = ERR_INIT;
    struct mil_program *p;
    double copy = 1e9, write = 1e9, copy_cpu = 1e9, write_cpu = 1e9;
    int i;

    bytes = mb << 20;
    snprintf(from, sizeof(from), "%s/bench-source", dir);
    snprintf(to, sizeof(to), "%s/bench.mlpackage", dir);
    need(io_remove_tree(from, &e) || io_remove_tree(to, &e), &e);
    fill(from, bytes);
    need(io_open_input(&f, from, &e), &e);
    p = make(&f, &e);
    for (i = 0; i < RUNS; i++) {
        double t = now(), cpu = processor();

        need(io_copy_file(from, to, &e), &e);
        t = now() - t;
        cpu = processor() - cpu;
        copy = t < copy ? t : copy;
        copy_cpu = cpu < copy_cpu ? cpu : copy_cpu;
        need(io_remove_tree(to, &e), &e);
        t = now();
        cpu = processor();
        need(pkg_write(to, p, NULL, NULL, &e), &e);
        t = now() - t;
        cpu = processor() - cpu;
        write_cpu = cpu < write_cpu ? cpu : write_cpu;
        write = t < write ? t : write;
        if (i == RUNS - 1)
            read_all(to);
        need(io_remove_tree(to, &e), &e);
    }
    printf("copy %.2f s, %.2f GB/s; package %.2f s, %.2f GB/s: %.0f %%\n", copy,
           (double)bytes / copy / 1e9, write, (double)bytes / write / 1e9,
           100 * copy / write);
    printf("processor: copy %.2f s, package %.2f s\n", copy_cpu, write_cpu);
    mil_program_free(p);
    io_close(&f);
    need(io_remove_tree(from, &e), &e);
    return 0;
}
