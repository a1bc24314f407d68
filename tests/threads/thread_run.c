/*
 * A decoder-like function on pools of several widths, with its weights in
 * memory and in pieces: for the thread sanitizer, and the same bits as one
 * thread.
 */
#include <stdio.h>
#include <string.h>

#include "converter/base/num.h"
#include "mil/build.h"
#include "mil/run/run.h"

#define C 256
#define T 48
#define HEADS 8
#define HD (C / HEADS)

static struct err e;
static f16_t w_bytes[2][C * C];
static struct mil_data w[2];

static void make_weights(void)
{
    unsigned s = 1;

    for (int i = 0; i < 2; i++) {
        for (int k = 0; k < C * C; k++) {
            s = s * 1664525u + 1013904223u;
            w_bytes[i][k] =
                f32_to_f16(((float)(s >> 9) / 4194304.0f - 1.0f) * 0.1f);
        }
        w[i].type = mil_type_make(MIL_F16, 4, (int64_t[]){ C, C, 1, 1 });
        w[i].bytes = sizeof(w_bytes[i]);
        w[i].read = mil_data_read_memory;
        w[i].cookie = w_bytes[i];
    }
}

static struct mil_program *make_program(void)
{
    struct mil_program *p = mil_program_new(&e);
    mil_ref x, q, k, s, st;
    struct mb b;

    if (!p)
        return NULL;
    mb_begin(&b, p, "main");
    x = mb_input(&b, "x", MIL_F16, 4, (int64_t[]){ 1, C, 1, T });
    st = mb_state(&b, "kv", 4, (int64_t[]){ 1, HEADS, 2 * T, HD });
    q = mb_conv1x1(&b, x, mb_data(&b, "q", &w[0]), 0);
    k = mb_conv1x1(&b, x, mb_data(&b, "k", &w[1]), 0);
    q = MB_TRANSPOSE(&b, MB_RESHAPE(&b, q, 1, HEADS, HD, T), 0, 1, 3, 2);
    k = MB_TRANSPOSE(&b, MB_RESHAPE(&b, k, 1, HEADS, HD, T), 0, 1, 3, 2);
    k = MB(&b, slice_update, .x = MB(&b, read_state, .input = st), .update = k,
           .begin = MB_INTS(&b, 0, 0, T / 2, 0),
           .end = MB_INTS(&b, 1, HEADS, T / 2 + T, HD));
    MB(&b, write_state, .input = st, .data = k);
    k = MB(&b, read_state, .input = st);
    s = MB(&b, matmul, .x = q, .y = k, .transpose_y = mb_bool(&b, true));
    s = MB(&b, softmax, .x = s);
    s = MB(&b, matmul, .x = s, .y = k);
    s = MB_RESHAPE(&b, MB_TRANSPOSE(&b, s, 0, 2, 1, 3), 1, T, C);
    s = MB(&b, layer_norm, .x = s, .axes = MB_INTS(&b, -1));
    s = MB(&b, mul, .x = MB(&b, tanh, .x = s), .y = s);
    mb_output(&b, "y", s);
    if (mb_end(&b, &e)) {
        mil_program_free(p);
        return NULL;
    }
    return p;
}

static int run_with(const struct mil_program *p, int threads,
                    uint64_t const_bytes, const float *x, float *y)
{
    struct par *par = par_new(threads, &e);
    struct run_options o = { .profile = RUN_FP16,
                             .par = par,
                             .const_bytes = const_bytes };
    struct run_model *m = par ? run_open(p, &o, &e) : NULL;
    struct run_states *s = run_states_new(&e);
    struct run_tensor in = {
        "x", mil_type_make(MIL_F16, 4, (int64_t[]){ 1, C, 1, T }), x
    };
    struct run_tensor out;
    size_t n;
    int rc = m && s ? 0 : -1;

    for (int i = 0; i < 3 && rc == 0; i++)
        rc = run_call(m, NULL, s, &in, 1, &out, 1, &n, &e);
    if (rc == 0)
        memcpy(y, out.data, sizeof(float) * C * T);
    run_close(m);
    run_states_free(s);
    par_free(par);
    return rc;
}

int main(void)
{
    static float x[C * T], one[C * T], many[C * T];
    struct mil_program *p;
    int bad = 0;

    make_weights();
    p = make_program();
    for (int i = 0; i < C * T; i++)
        x[i] = (float)(i * 7 % 31) / 16.0f - 1.0f;
    if (!p || run_with(p, 1, 0, x, one)) {
        fprintf(stderr, "thread_run: %s\n", e.text);
        return 1;
    }
    for (int threads = 2; threads <= 6; threads++) {
        if (run_with(p, threads, (uint64_t)(threads % 2), x, many)) {
            fprintf(stderr, "thread_run: %s\n", e.text);
            bad = 1;
        } else if (memcmp(one, many, sizeof(one)) != 0) {
            fprintf(stderr, "thread_run: %d threads differ\n", threads);
            bad = 1;
        }
    }
    mil_program_free(p);
    return bad;
}
