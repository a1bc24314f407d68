#!/usr/bin/env python3
"""Each operation of the runtime against coremltools' own value inference.

    op_values.py RUN_OP [--seed N] [--only OP] [--keep FILE] [--few N]

Makes cases for every op (odd shapes, broadcasting, special values), lets
coremltools evaluate them in float32 (numpy where it has no evaluation: conv,
attention, states), and hands them to RUN_OP, which runs them as fp32 and as
fp16. --keep stores the cases, --few takes the first N small ones of each op
(tests/ops/values.json is `--few 8 --keep`). Exit status: 0 all agree, 1 a difference, 77 coremltools is missing.
"""
import argparse
import json
import logging
import subprocess
import sys
import tempfile
import warnings

warnings.filterwarnings("ignore")
logging.disable(logging.CRITICAL)
try:
    import coremltools as ct
    import numpy as np
    from coremltools.converters.mil import Builder as mb
    from coremltools.converters.mil.mil import Function
    from coremltools.converters.mil.mil.ops.defs.iOS18 import compression
except ImportError as missing:
    print(f"skipped: {missing}")
    sys.exit(77)

NAN, INF = float("nan"), float("inf")
SPECIAL = [0.0, -0.0, 1.0, -1.0, INF, -INF, NAN, 65504.0, -65504.0, 6e-8,
           -6e-8, 6.1e-5, 1e-4, 0.5, -0.5, 1.5, 2.5, -2.5, 11.0, -11.0, 88.0,
           -88.0, 0.25, 3.14159, 100.25, -7.0]


class Cases:
    def __init__(self, seed):
        self.r = np.random.default_rng(seed)
        self.list = []
        self.counts = {}

    # ---- inputs: floats are exact in fp16

    def f(self, *shape, scale=1.0):
        a = self.r.standard_normal(shape) * scale
        return np.asarray(a, np.float16).astype(np.float32)

    def special(self, n, finite=False, positive=False):
        s = np.array(SPECIAL, np.float16).astype(np.float32)
        if finite:
            s = s[np.isfinite(s)]
        if positive:
            s = np.abs(s)
        return np.resize(self.r.permutation(s), n)

    def i(self, *shape, lo=-9, hi=10):
        return self.r.integers(lo, hi, shape).astype(np.int32)

    def b(self, *shape):
        return self.r.integers(0, 2, shape).astype(bool)

    # ---- one case

    def expected(self, op, args):
        with Function({}, opset_version=ct.target.iOS18):
            def const(v):
                if isinstance(v, list):
                    return [const(x) for x in v]
                return mb.const(val=v) if isinstance(v, np.ndarray) else v
            r = getattr(mb, op)(**{k: const(v) for k, v in args.items()})
        r = r if isinstance(r, (list, tuple)) else [r]
        assert all(v.val is not None for v in r), f"{op} has no value"
        return [np.asarray(v.val) for v in r]

    def add(self, op, rtol=2e-6, atol=0.0, run_time=("x", "y"), want=None,
            **args):
        n = self.counts[op] = self.counts.get(op, 0) + 1
        args = {k: halves(v) for k, v in args.items()}
        if want is None:
            want = self.expected(op, args)
        self.list.append({
            "name": f"{op}_{n}", "op": op, "rtol": rtol, "atol": atol,
            "args": {k: encode(v) for k, v in args.items()},
            "run_time": [p for p in run_time if p in args],
            "outs": [encode(np.asarray(w)) for w in want]})


class Packed:
    """Integers of a dtype that numpy lacks."""

    def __init__(self, dtype, values):
        self.dtype, self.values = dtype, values


def halves(v):
    """Floats as fp16 holds them, so that one case serves both types."""
    if isinstance(v, list):
        return [halves(x) for x in v]
    if isinstance(v, (np.ndarray, np.floating)) and v.dtype.kind == "f":
        return np.asarray(v, np.float16).astype(np.float32)
    return v


def encode(v):
    if isinstance(v, Packed):
        return {"dtype": v.dtype, "shape": list(v.values.shape),
                "bits": [int(x) for x in v.values.reshape(-1)]}
    if isinstance(v, (list, tuple)):
        return [encode(x) for x in v]
    if isinstance(v, str):
        return {"string": v}
    if isinstance(v, bool):
        v = np.array(v)
    elif isinstance(v, int):
        v = np.array(v, np.int32)
    elif isinstance(v, float):
        v = np.array(v, np.float32)
    v = np.asarray(v)
    if v.dtype.kind == "f":
        bits = np.ascontiguousarray(v, np.float32).view(np.uint32)
        return {"dtype": "fp32", "shape": list(v.shape),
                "bits": [int(x) for x in bits.reshape(-1)]}
    name = {"bool": "bool", "int64": "int32"}.get(str(v.dtype), str(v.dtype))
    return {"dtype": name, "shape": list(v.shape),
            "bits": [int(x) for x in v.reshape(-1)]}


def ints(*v):
    return np.array(v, np.int32)


def bools(*v):
    return np.array(v, bool)


SHAPES = [((3,), (3,)), ((5, 7), (7,)), ((2, 1, 9), (4, 1)), ((1,), (1,)),
          ((2, 3, 1, 5), (1, 3, 4, 1)), ((1, 1, 1, 17), (2, 1, 3, 17)),
          ((4, 33), (4, 33)), ((2, 1, 3, 1, 2), (1, 5, 1, 4, 1))]


def binaries(c):
    floats = ["add", "sub", "mul", "real_div", "maximum", "minimum",
              "greater", "greater_equal", "less", "less_equal", "equal",
              "not_equal"]
    for op in floats:
        for a, b in SHAPES:
            c.add(op, x=c.f(*a), y=c.f(*b))
            c.add(op, x=c.f(*b), y=c.f(*a))
        n = len(SPECIAL)
        c.add(op, x=np.repeat(c.special(n), n).reshape(n, n),
              y=c.special(n), run_time=("x",))
        c.add(op, x=c.f(3, 4), y=np.float32(0.75).reshape(()))
        c.add(op, x=c.f(3, 4), y=c.f(3, 4), run_time=("y",))
    for op in ["add", "sub", "mul", "maximum", "minimum", "floor_div", "mod",
               "greater", "less_equal", "equal", "not_equal", "less",
               "greater_equal"]:
        for a, b in SHAPES[:6]:
            y = c.i(*b)
            if op in ("floor_div", "mod"):
                y[y == 0] = 3
            c.add(op, x=c.i(*a, lo=-1000, hi=1000), y=y)
    for op in ["floor_div", "mod"]:
        y = c.f(6, 5)
        y[y == 0] = 1
        c.add(op, x=c.f(6, 5, scale=4), y=y)
        c.add(op, x=np.array([7, -7, 7, -7, 5.5, -5.5, 0], np.float32),
              y=np.array([2, 2, -2, -2, 0.5, 0.5, 3], np.float32))
    c.add("pow", rtol=1e-5, x=np.abs(c.f(5, 6)) + 0.25, y=c.f(5, 6))
    c.add("pow", rtol=1e-5, x=c.f(9), y=np.full((9,), 2, np.float32))
    c.add("pow", rtol=1e-5, x=c.f(9), y=np.full((), 3, np.float32))
    c.add("pow", x=c.i(9, lo=-4, hi=5), y=c.i(9, lo=0, hi=6))
    for op in ["logical_and", "logical_or", "logical_xor"]:
        for a, b in SHAPES[:6]:
            c.add(op, x=c.b(*a), y=c.b(*b))
    c.add("logical_not", x=c.b(4, 5))


def selects(c):
    rt = ("cond", "a", "b")
    for a, b in SHAPES:
        full = np.broadcast_shapes(a, b)
        x, y, cond = c.f(*a), c.f(*b), c.b(*full)
        c.add("select", cond=cond, a=x, b=y, run_time=rt,
              want=[np.where(cond, x, y)])
        x, y = c.i(*full), c.i(*b)
        c.add("select", cond=cond[-1:], a=x, b=y, run_time=rt,
              want=[np.where(cond[-1:], x, y)])
    x, y, cond = c.b(3, 4), c.b(3, 4), c.b(3, 4)
    c.add("select", cond=cond, a=x, b=y, run_time=rt,
          want=[np.where(cond, x, y)])


def unaries(c):
    loose = {"sin", "cos", "exp", "tanh", "sigmoid", "softplus", "erf",
             "silu", "gelu"}
    ops = ["sqrt", "exp", "tanh", "sigmoid", "softplus", "erf", "relu",
           "floor", "ceil", "round", "sin", "cos", "abs", "square", "sign"]
    for op in ops:
        tol = dict(rtol=5e-6, atol=1e-7) if op in loose else {}
        for shape in [(1,), (7,), (3, 11), (2, 3, 4, 5), (1, 64, 1, 9)]:
            x = c.f(*shape, scale=3)
            c.add(op, x=np.abs(x) if op == "sqrt" else x, **tol)
        sp = c.special(29)
        if op in ("sin", "cos"):
            sp = sp[np.abs(sp) < 1000]
        c.add(op, x=sp, **tol)
    x = c.f(5, 13, scale=4)
    c.add("silu", rtol=5e-6, x=x, want=[x / (1 + np.exp(-x))])
    for op in ["abs", "square", "sign"]:
        c.add(op, x=c.i(4, 9))
    for op in ["rsqrt", "log", "inverse"]:
        x = np.abs(c.f(5, 9)) + np.float32(0.125)
        for eps in [1e-4, 0.5, 0.001]:
            c.add(op, rtol=5e-6, x=x, epsilon=np.float32(np.float16(eps)))
        c.add(op, rtol=5e-6, atol=1e-6, x=np.abs(c.f(7)) + 1)
    for a, b in [(-1.0, 1.0), (0.0, 6.0), (-0.25, 0.75)]:
        c.add("clip", x=c.f(6, 7, scale=3), alpha=np.float32(a),
              beta=np.float32(b))
        c.add("clip", x=c.special(26), alpha=np.float32(a),
              beta=np.float32(b))
    for mode in ["EXACT", "TANH_APPROXIMATION", "SIGMOID_APPROXIMATION"]:
        c.add("gelu", rtol=5e-6, atol=1e-6, x=c.f(5, 13, scale=3), mode=mode)
        c.add("gelu", rtol=5e-6, atol=1e-6,
              x=c.special(26, finite=True) * np.float32(0.1), mode=mode)


def casts(c):
    x = np.array([0, -0.0, 1.5, -1.5, 2.99, -2.99, 100, -100, 7.0],
                 np.float32)
    pos = np.abs(x)
    for d in ["int32", "int16", "int8"]:
        c.add("cast", x=x, dtype=d, want=[x.astype(d)])
    for d in ["uint16", "uint8"]:
        c.add("cast", x=pos, dtype=d, want=[pos.astype(d)])
    c.add("cast", x=x, dtype="bool", want=[x != 0])
    c.add("cast", x=c.b(3, 5), dtype="int32")
    v = c.i(4, 6, lo=-100, hi=100)
    for d in ["int32", "int16", "int8", "bool"]:
        c.add("cast", x=v, dtype=d, want=[v.astype(d)])
    c.add("cast", x=np.abs(v), dtype="uint8", want=[np.abs(v).astype("u1")])
    x = v.astype(np.int16)
    c.add("cast", x=x, dtype="int32", want=[v])


def norms(c):
    for shape, axes in [((2, 3, 16), [-1]), ((1, 4, 33), [2]),
                        ((2, 5, 6), [1]), ((2, 3, 4, 5), [1, 3]),
                        ((3, 7), [0, 1]), ((1, 8, 1, 6), [1])]:
        dims = [shape[a] for a in sorted(a % len(shape) for a in axes)]
        g, b = c.f(*dims), c.f(*dims)
        kw = dict(rtol=2e-5, atol=2e-6, axes=ints(*axes))
        x = c.f(*shape, scale=2)
        mean = x.mean(tuple(axes), keepdims=True)
        var = x.var(tuple(axes), keepdims=True)
        eps = np.float32(np.float16(1e-3))
        y = ((x - mean) / np.sqrt(var + eps)).astype(np.float32)
        gs = np.ones(len(shape), int)
        for i, a in enumerate(sorted(a % len(shape) for a in axes)):
            gs[a] = dims[i]
        for gamma, beta in [(None, None), (g, None), (None, b), (g, b)]:
            w = y * (gamma.reshape(gs) if gamma is not None else 1)
            w = w + (beta.reshape(gs) if beta is not None else 0)
            opt = {}
            if gamma is not None:
                opt["gamma"] = gamma
            if beta is not None:
                opt["beta"] = beta
            c.add("layer_norm", x=x, epsilon=eps, want=[w], **opt, **kw)
        c.add("layer_norm", x=x, epsilon=eps, gamma=g, beta=b, **kw)
    x = c.f(2, 3, 4, 5)
    n = np.sqrt((x ** 2).sum((1, 2, 3), keepdims=True) + np.float32(0.25))
    c.add("l2_norm", rtol=1e-5, x=x, epsilon=np.float32(0.25), want=[x / n])
    for shape, axis in [((3, 5), -1), ((2, 7, 3), 1), ((9,), 0), ((1,), 0),
                        ((2, 3, 4, 100), 3), ((5, 6), 0), ((1, 2, 33), -1)]:
        c.add("softmax", rtol=1e-5, atol=1e-8, x=c.f(*shape, scale=4),
              axis=axis)
    x = c.f(2, 4, 9)
    x[0, :, 3:] = -INF
    x[1, 0, :] = -60000
    c.add("softmax", rtol=1e-5, atol=1e-8, x=x, axis=-1)
    for op in ["reduce_sum", "reduce_mean", "reduce_max", "reduce_min",
               "reduce_sum_square", "reduce_l2_norm", "reduce_log_sum_exp"]:
        for shape, axes in [((3, 5), [1]), ((3, 5), [0]), ((2, 3, 4), [0, 2]),
                            ((2, 3, 4, 5), [-1, -3]), ((7,), [0]),
                            ((1, 1, 37), [2])]:
            for keep in (True, False):
                c.add(op, rtol=1e-5, atol=1e-5, x=c.f(*shape),
                      axes=ints(*axes), keep_dims=keep)
        c.add(op, rtol=1e-5, atol=1e-5, x=c.f(3, 4, 5), keep_dims=True)
        if op in ("reduce_sum", "reduce_max", "reduce_min",
                  "reduce_sum_square"):
            c.add(op, x=c.i(4, 6), axes=ints(1), keep_dims=False)
    for op in ["reduce_argmax", "reduce_argmin"]:
        for shape, axis in [((3, 5), -1), ((3, 5), 0), ((2, 6, 4), 1)]:
            for keep in (True, False):
                c.add(op, x=c.f(*shape), axis=axis, keep_dims=keep)
        c.add(op, x=c.i(5, 40, lo=0, hi=4), axis=1)
    for shape, axis in [((5,), 0), ((3, 7), 1), ((3, 7), 0), ((2, 3, 4), -1)]:
        for ex in (False, True):
            for rev in (False, True):
                x, v = c.f(*shape), c.i(*shape)
                kw = dict(axis=axis, exclusive=ex, reverse=rev)
                c.add("cumsum", rtol=1e-5, atol=1e-5, x=x,
                      want=[cumsum(x, axis, ex, rev)], **kw)
                c.add("cumsum", x=v, want=[cumsum(v, axis, ex, rev)], **kw)
    for shape, axis, k in [((7,), 0, 3), ((3, 9), -1, 9), ((4, 6, 2), 1, 2),
                           ((2, 50), 1, 1)]:
        for asc in (False, True):
            x = distinct(c, shape)
            order = np.argsort(x if asc else -x, axis=axis, kind="stable")
            order = np.take(order, range(k), axis)
            c.add("topk", x=x, k=k, axis=axis, ascending=asc, sort=True,
                  want=[np.take_along_axis(x, order, axis),
                        order.astype(np.int32)])


def distinct(c, shape):
    n = int(np.prod(shape))
    return c.r.permutation(n).astype(np.float32).reshape(shape) - n // 2


def cumsum(x, axis, exclusive, reverse):
    y = np.flip(x, axis) if reverse else x
    s = np.cumsum(y, axis=axis, dtype=x.dtype)
    if exclusive:
        s = s - y
    return np.flip(s, axis) if reverse else s


def products(c):
    tol = dict(rtol=1e-5, atol=1e-5)
    for x, y, tx, ty in [((3, 4), (4, 5), 0, 0), ((3, 4), (5, 4), 0, 1),
                         ((4, 3), (4, 5), 1, 0), ((4, 3), (5, 4), 1, 1),
                         ((1, 17), (17, 33), 0, 0), ((2, 9, 8), (8, 7), 0, 0),
                         ((2, 1, 5, 40), (3, 40, 6), 0, 0),
                         ((1, 3, 1, 64), (1, 3, 19, 64), 0, 1),
                         ((2, 3, 6, 19), (2, 3, 19, 31), 0, 0),
                         ((2, 3, 3, 19), (2, 1, 19, 100), 0, 0),
                         ((4, 1, 8), (4, 8, 1), 0, 0), ((6,), (6, 3), 0, 0),
                         ((5, 6), (6,), 0, 0), ((6,), (6,), 0, 0),
                         ((7, 70), (70, 9), 0, 0), ((3, 2, 7, 5), (7, 5), 0, 1)]:
        for rt in [("x", "y"), ("x",), ("y",)]:
            a, b = c.f(*x), c.f(*y)
            w = None                    # rank 1: not evaluated there
            if len(x) == 1 or len(y) == 1:
                w = [np.matmul(a, b)]
            c.add("matmul", x=a, y=b, transpose_x=bool(tx),
                  transpose_y=bool(ty), run_time=rt, want=w, **tol)
    c.add("matmul", x=c.i(3, 4), y=c.i(4, 5))
    for shape, d in [((4, 9), 7), ((1, 33), 12), ((2, 3, 16), 5), ((8,), 3),
                     ((64, 40), 100)]:
        w, b = c.f(d, shape[-1]), c.f(d)
        c.add("linear", x=c.f(*shape), weight=w, bias=b, **tol)
        c.add("linear", x=c.f(*shape), weight=w, **tol)
    x, y = c.f(1, 2, 2, 3), c.f(1, 3, 1, 2)
    c.add("einsum", values=[x, y], equation="abcd,adce->abce",
          run_time=("values",), want=[np.einsum("nchw,nwhu->nchu", x,
                                                np.repeat(y, 2, 2))], **tol)
    x, y = c.f(2, 3, 4, 5), c.f(2, 5, 4, 6)
    c.add("einsum", values=[x, y], equation="nchw,nwhu->nchu",
          run_time=("values",), want=[np.einsum("nchw,nwhu->nchu", x, y)],
          **tol)
    x, y = c.f(3, 4, 9), c.f(9, 4, 21)
    c.add("einsum", values=[x, y], equation="chw,whu->chu",
          run_time=("values",), want=[np.einsum("chw,whu->chu", x, y)], **tol)
    for b, h, l, s, e, ev, mask in [(1, 2, 3, 5, 8, 8, None),
                                    (2, 3, 1, 17, 16, 12, "bool"),
                                    (1, 4, 6, 6, 10, 7, "float"),
                                    (2, 2, 5, 9, 4, 33, "row")]:
        q, k, v = c.f(b, h, l, e), c.f(b, h, s, e), c.f(b, h, s, ev)
        sc = np.einsum("bhle,bhse->bhls", q, k) / np.sqrt(np.float32(e))
        args = dict(query=q, key=k, value=v)
        if mask == "bool":
            m = c.b(b, 1, l, s)
            m[..., 0] = True
            sc = np.where(m, sc, -INF)
            args["attn_mask"] = m
        elif mask:
            m = c.f(l, s) if mask == "float" else c.f(1, s)
            sc = sc + m
            args["attn_mask"] = m
        p = np.exp(sc - sc.max(-1, keepdims=True))
        p = p / p.sum(-1, keepdims=True)
        c.add("scaled_dot_product_attention",
              run_time=("query", "key", "value", "attn_mask"),
              want=[np.einsum("bhls,bhsv->bhlv", p, v).astype(np.float32)],
              rtol=2e-5, atol=2e-5, **args)


def conv_ref(x, w, bias, stride, dil, before, after, groups):
    s = x.ndim - 2
    x = np.pad(x, [(0, 0), (0, 0)] + list(zip(before, after)))
    out = [(x.shape[i + 2] - (w.shape[i + 2] - 1) * dil[i] - 1) // stride[i] + 1
           for i in range(s)]
    y = np.zeros((x.shape[0], w.shape[0], *out), np.float64)
    og, ig = w.shape[0] // groups, w.shape[1]
    for k in np.ndindex(*w.shape[2:]):
        cut = tuple(slice(k[i] * dil[i],
                          k[i] * dil[i] + (out[i] - 1) * stride[i] + 1,
                          stride[i]) for i in range(s))
        for g in range(groups):
            xs = x[(slice(None), slice(g * ig, (g + 1) * ig)) + cut]
            ws = w[(slice(g * og, (g + 1) * og), slice(None)) + k]
            y[:, g * og:(g + 1) * og] += np.einsum(
                "oi,ni...->no...", ws.astype(np.float64), xs)
    if bias is not None:
        y += bias.reshape((1, -1) + (1,) * s)
    return y.astype(np.float32)


def convs(c):
    def case(xs, ws, stride=None, dil=None, pad=None, groups=1, bias=True,
             kind="custom"):
        s = len(xs) - 2
        x, w = c.f(*xs), c.f(*ws)
        b = c.f(ws[0]) if bias else None
        st, dl = stride or [1] * s, dil or [1] * s
        args = dict(x=x, weight=w, strides=ints(*st), dilations=ints(*dl),
                    pad_type=kind, groups=groups)
        before, after = [0] * s, [0] * s
        if kind == "custom":
            pad = pad or [0] * (2 * s)
            args["pad"] = ints(*pad)
            before, after = pad[::2], pad[1::2]
        elif kind.startswith("same"):
            for i in range(s):
                keff = (ws[i + 2] - 1) * dl[i] + 1
                o = -(-xs[i + 2] // st[i])
                t = max(0, (o - 1) * st[i] + keff - xs[i + 2])
                before[i] = t // 2 if kind == "same" else t - t // 2
                after[i] = t - before[i]
        if bias:
            args["bias"] = b
        c.add("conv", rtol=1e-5, atol=2e-5,
              want=[conv_ref(x, w, b, st, dl, before, after, groups)], **args)

    case((1, 16, 1, 9), (12, 16, 1, 1))
    case((1, 33, 1, 1), (17, 33, 1, 1))
    case((1, 40, 1, 64), (20, 40, 1, 1), bias=False)
    case((2, 5, 7), (4, 5, 1))
    case((1, 3, 8), (6, 3, 3), pad=[1, 1])
    case((2, 4, 6, 7), (8, 4, 3, 2), stride=[2, 1], pad=[1, 0, 1, 1])
    case((1, 4, 9, 9), (6, 2, 3, 3), groups=2, dil=[2, 1])
    case((1, 6, 1, 10), (6, 1, 1, 4), groups=6)
    case((1, 6, 1, 4), (6, 1, 1, 4), groups=6, bias=False)
    case((1, 6, 1, 10), (12, 1, 1, 3), groups=6, dil=[1, 2], pad=[0, 0, 2, 1])
    case((2, 3, 20), (3, 1, 5), groups=3, pad=[4, 0])
    case((1, 2, 4, 5, 6), (3, 2, 2, 3, 2), pad=[0, 1, 1, 0, 1, 1])
    for kind in ("same", "same_lower", "valid"):
        case((1, 3, 7, 8), (4, 3, 2, 3), stride=[1, 2], kind=kind)
        case((1, 3, 9), (5, 3, 4), stride=[2], kind=kind)


def shapes(c):
    for shape, to in [((2, 6), (3, 4)), ((2, 3, 4), (-1,)), ((4,), (2, 1, 2)),
                      ((1, 8, 1, 3), (1, 8, 3))]:
        for rt in (("x",), ("x", "shape"), ("shape",)):
            c.add("reshape", x=c.f(*shape), shape=ints(*to), run_time=rt)
    c.add("reshape", x=c.i(2, 6), shape=ints(4, 3), run_time=("x",))
    x = c.f(2, 50)
    c.add("reshape", x=x, shape=ints(1, 0, -1, 0),
          want=[x.reshape(1, 1, 2, 50)])
    for shape, perm in [((2, 3), (1, 0)), ((2, 3, 4), (2, 0, 1)),
                        ((1, 5, 1, 7), (0, 3, 2, 1)), ((2, 3, 4, 5), (0, 2, 1, 3)),
                        ((40, 37), (1, 0)), ((2, 3, 4, 5, 6), (4, 1, 3, 0, 2)),
                        ((1, 7, 9), (0, -1, -2))]:
        c.add("transpose", x=c.f(*shape), perm=ints(*perm))
        c.add("transpose", x=c.i(*shape), perm=ints(*perm))
    c.add("expand_dims", x=c.f(3, 4), axes=ints(0, -1))
    c.add("expand_dims", x=c.b(3), axes=ints(1))
    c.add("squeeze", x=c.f(1, 3, 1, 4), axes=ints(0, 2))
    c.add("squeeze", x=c.f(1, 3, 1))
    x = c.f(1, 1)
    c.add("squeeze", x=x, want=[x.reshape(())])
    for shape, reps in [((2, 3), (2, 1)), ((1, 4, 1), (3, 2, 5)), ((5,), (1,)),
                        ((1, 2, 1, 3, 2), (2, 1, 3, 1, 2))]:
        c.add("tile", x=c.f(*shape), reps=ints(*reps))
        c.add("tile", x=c.f(*shape), reps=ints(*reps),
              run_time=("x", "reps"))
        c.add("tile", x=c.i(*shape), reps=ints(*reps))
    rt = ("values",)
    for parts, axis in [([(2, 3), (4, 3)], 0), ([(2, 3), (2, 1)], -1),
                        ([(1, 2, 5), (1, 3, 5), (1, 1, 5)], 1), ([(4,)], 0)]:
        c.add("concat", values=[c.f(*p) for p in parts], axis=axis, run_time=rt)
        c.add("concat", values=[c.i(*p) for p in parts], axis=axis, run_time=rt)
    a, b = c.f(2, 3, 4), c.f(2, 3, 4)
    c.add("concat", values=[a, b], axis=1, interleave=True, run_time=rt,
          want=[np.stack([a, b], 2).reshape(2, 6, 4)])
    for axis in (0, 1, 2, -1):
        c.add("stack", values=[c.f(3, 4), c.f(3, 4), c.f(3, 4)], axis=axis,
              run_time=rt)
    c.add("split", x=c.f(2, 6), num_splits=3, axis=1)
    c.add("split", x=c.f(6, 2), split_sizes=ints(1, 3, 2), axis=0)
    c.add("split", x=c.i(2, 5, 3), split_sizes=ints(4, 1), axis=-2)
    for shape, lo, up in [((4, 5), -1, 0), ((5, 4), 0, -1), ((2, 3, 6), 1, 2),
                          ((3, 3), 0, 0)]:
        c.add("band_part", x=c.f(*shape), lower=lo, upper=up)
    c.add("shape", x=c.f(2, 3, 4))
    c.add("identity", x=c.f(3))
    for shape, pad, mode in [((2, 5), (1, 2), "constant"),
                             ((2, 5), (1, 0, 2, 3), "constant"),
                             ((1, 2, 4, 5), (1, 2, 2, 1), "reflect"),
                             ((1, 2, 4, 5), (3, 2, 0, 4), "replicate")]:
        x, n = c.f(*shape), len(pad) // 2
        full = [(0, 0)] * (len(shape) - n) + list(zip(pad[::2], pad[1::2]))
        kw = {"constant_values": 1.5} if mode == "constant" else {}
        names = {"constant": "constant", "reflect": "reflect",
                 "replicate": "edge"}
        for rt in (("x",), ("x", "pad")):
            c.add("pad", x=x, pad=ints(*pad), mode=mode, run_time=rt,
                  constant_val=np.float32(1.5),
                  want=[np.pad(x, full, mode=names[mode], **kw)])


def fills(c):
    for v in (np.float32(2.5), np.int32(-3), True):
        value = np.full((2, 3), v)
        c.add("fill", shape=ints(2, 3), value=np.asarray(v), run_time=(),
              want=[value])
        c.add("fill", shape=ints(2, 3), value=np.asarray(v),
              run_time=("shape",), want=[value])
    for a in [(7, 0, 1), (10, 1, 3), (-5, 4, -2)]:
        end, start, step = (np.array(v, np.int32) for v in a)
        w = np.arange(a[1], a[0], a[2]).astype(np.int32)
        for rt in ((), ("end",), ("end", "start", "step")):
            c.add("range_1d", end=end, start=start, step=step, run_time=rt,
                  want=[w])
    end, start, step = (np.array(v, np.float32) for v in (2.25, -1, 0.5))
    for rt in ((), ("end", "start")):
        c.add("range_1d", end=end, start=start, step=step, run_time=rt,
              want=[np.arange(-1, 2.25, 0.5).astype(np.float32)])


def slices(c):
    cases = [((5, 6), (1, 2), (4, 6), {}), ((5,), (-3,), (-1,), {}),
             ((5, 6), (0, -1), (5, 0), {"stride": (2, -2), "end_mask": (0, 1)}),
             ((4, 5, 6), (0, 2, 1), (0, 0, 5),
              {"begin_mask": (1, 0, 0), "end_mask": (1, 0, 0),
               "squeeze_mask": (0, 1, 0)}),
             ((3, 4), (1, 0), (2, 4), {"squeeze_mask": (1, 0)}),
             ((7,), (6,), (0,), {"stride": (-3,)}),
             ((1, 8, 4), (0, 4, 0), (1, 8, 4), {}),
             ((2, 9), (0, 1), (2, 100), {"stride": (1, 3)}),
             ((6,), (-1,), (0,), {"squeeze_mask": (1,)})]
    for shape, b, e, o in cases:
        opt = {k: (bools(*v) if k != "stride" else ints(*v))
               for k, v in o.items()}
        for x in (c.f(*shape), c.i(*shape)):
            w = c.expected("slice_by_index",
                           dict(x=x, begin=ints(*b), end=ints(*e), **opt))
            for rt in (("x",), ("x", "begin", "end")):
                c.add("slice_by_index", x=x, begin=ints(*b), end=ints(*e),
                      run_time=rt, want=w, **opt)
        part = w[0]
        if part.ndim == 0:
            continue
        x, u = c.f(*shape), c.f(*part.shape)
        y = x.copy()
        idx = []
        for i in range(len(shape)):
            st = o.get("stride", (1,) * len(shape))[i]
            if o.get("squeeze_mask", (0,) * len(shape))[i]:
                idx.append(b[i])
                continue
            lo = None if o.get("begin_mask", (0,) * len(shape))[i] else b[i]
            hi = None if o.get("end_mask", (0,) * len(shape))[i] else e[i]
            idx.append(slice(lo, hi, st))
        y[tuple(idx)] = u
        for rt in (("x", "update"), ("x", "update", "begin", "end"), ("update",)):
            c.add("slice_update", x=x, update=u, begin=ints(*b), end=ints(*e),
                  run_time=rt, want=[y], **opt)
    for shape, b, s in [((5, 6), (1, 2), (3, -1)), ((5, 6), (-2, 0), (2, 6)),
                        ((2, 3, 4), (0, 1, 0), (2, 2, 4)), ((9,), (4,), (1,))]:
        x = c.f(*shape)
        pos = [v + n if v < 0 else v for v, n in zip(b, shape)]
        w = x[tuple(slice(p, None if k == -1 else p + k)
                    for p, k in zip(pos, s))]
        for rt in (("x",), ("x", "begin"), ("x", "begin", "size")):
            c.add("slice_by_size", x=x, begin=ints(*b), size=ints(*s),
                  run_time=rt, want=[w])


def gathers(c):
    for shape, ind, axis in [((5, 3), (4,), 0), ((5, 3), (2, 2), 1),
                             ((4, 6, 2), (3,), 1), ((7,), (), 0),
                             ((2, 3, 4), (2, 3), -1), ((1000, 9), (1, 5), 0)]:
        ix = c.i(*ind, lo=0, hi=shape[axis])
        for x in (c.f(*shape), c.i(*shape)):
            for rt in (("x", "indices"), ("indices",), ("x",)):
                c.add("gather", x=x, indices=ix, axis=axis, run_time=rt,
                      want=[np.take(x, ix, axis)])
    x, ix = c.f(2, 4, 3), c.i(2, 5, lo=0, hi=4)
    c.add("gather", x=x, indices=ix, axis=1, batch_dims=1,
          run_time=("x", "indices"),
          want=[np.stack([np.take(x[i], ix[i], 0) for i in range(2)])])
    x, ix = c.f(2, 3, 4, 5), c.i(2, 3, 2, lo=0, hi=5)
    c.add("gather", x=x, indices=ix, axis=3, batch_dims=2,
          run_time=("x", "indices"),
          want=[np.stack([np.stack([np.take(x[i, j], ix[i, j], 1)
                                    for j in range(3)]) for i in range(2)])])
    c.add("gather", x=c.f(6, 2), indices=c.i(3, lo=0, hi=6).astype(np.uint16),
          axis=0, run_time=("x", "indices"))
    for shape, axis, n in [((4, 5), 0, 3), ((4, 5), 1, 7), ((2, 3, 4), -2, 2)]:
        d = list(shape)
        d[axis] = n
        ix = c.i(*d, lo=0, hi=shape[axis])
        x = c.f(*shape)
        c.add("gather_along_axis", x=x, indices=ix, axis=axis,
              run_time=("x", "indices"), want=[np.take_along_axis(x, ix, axis)])
    x = c.f(4, 5, 3)
    ix = np.stack([c.i(6, lo=0, hi=4), c.i(6, lo=0, hi=5)], -1)
    c.add("gather_nd", x=x, indices=ix, run_time=("x", "indices"),
          want=[x[ix[:, 0], ix[:, 1]]])
    ix = c.i(4, 2, 1, lo=0, hi=5)
    c.add("gather_nd", x=x, indices=ix, batch_dims=1,
          run_time=("x", "indices"),
          want=[np.stack([x[i][ix[i, :, 0]] for i in range(4)])])


def constexprs(c):
    lut_to_dense = compression.constexpr_lut_to_dense.decompress
    shift_scale = compression.constexpr_blockwise_shift_scale.decompress
    to_dense = compression.constexpr_sparse_to_dense.decompress
    for bits in (1, 2, 3, 4, 6, 8):
        n = 1 << bits
        for shape, groups in [((6, 5, 1, 1), (3, 1, 1, 1)), ((7,), (1,)),
                              ((4, 300), (2, 1)), ((4, 6), (2, 3)),
                              ((2, 3, 4), (1, 3, 2))]:
            ix = c.r.integers(0, n, shape).astype(np.uint8)
            lut = c.f(*groups, n, 1)
            c.add("constexpr_lut_to_dense", indices=Packed(f"uint{bits}", ix),
                  lut=lut, want=[lut_to_dense(ix, lut, None)])
        for shape, groups, axis in [((6, 5), (3, 1), 0), ((4, 6), (2, 1), -1),
                                    ((2, 3, 2), (1, 3, 1), 1)]:
            ix = c.r.integers(0, n, shape).astype(np.uint8)
            lut = c.f(*groups, n, 4)
            c.add("constexpr_lut_to_dense", indices=Packed(f"uint{bits}", ix),
                  lut=lut, vector_axis=axis,
                  want=[lut_to_dense(ix, lut, np.int32(axis))])
    for dtype, lo, hi in [("int4", -8, 8), ("uint4", 0, 16),
                          ("int8", -128, 128), ("uint8", 0, 256)]:
        for shape, blocks in [((6, 8), (6, 2)), ((4, 5, 1, 1), (4, 1, 1, 1)),
                              ((3, 300), (1, 3)), ((9,), (1,))]:
            d = c.i(*shape, lo=lo, hi=hi)
            off = c.i(*blocks, lo=lo, hi=hi)
            scale = (2.0 ** c.i(*blocks, lo=-6, hi=0)).astype(np.float32)
            for o in (None, off):
                kw = {} if o is None else {"offset": Packed(dtype, o)}
                c.add("constexpr_blockwise_shift_scale",
                      data=Packed(dtype, d), scale=scale,
                      want=[shift_scale(d, scale, o)], **kw)
    for shape in [(5,), (3, 7), (2, 2, 5)]:
        mask = c.i(*shape, lo=0, hi=2)
        mask.reshape(-1)[0] = 1
        v = c.f(int(mask.sum()))
        c.add("constexpr_sparse_to_dense", nonzero_data=v,
              mask=Packed("uint1", mask), want=[to_dense(v, mask)])


def few(cases, n):
    """Every second small case, up to n of an op."""
    count, out = {}, []
    small = {x["op"] for x in cases if len(json.dumps(x)) <= 1500}
    for x in cases:
        if len(json.dumps(x)) > (1500 if x["op"] in small else 6000):
            continue
        k = count[x["op"]] = count.get(x["op"], 0) + 1
        if k % 2 and k < 2 * n:
            out.append(x)
    return out


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("runner")
    ap.add_argument("--seed", type=int, default=1)
    ap.add_argument("--only")
    ap.add_argument("--keep")
    ap.add_argument("--few", type=int)
    a = ap.parse_args()
    c = Cases(a.seed)
    with np.errstate(all="ignore"):
        for make in (binaries, selects, unaries, casts, norms, products,
                     convs, shapes, fills, slices, gathers, constexprs):
            make(c)
    if a.only:
        c.list = [x for x in c.list if x["op"] == a.only]
    if a.few:
        c.list = few(c.list, a.few)
    print(f"{len(c.list)} cases of {len({x['op'] for x in c.list})} ops")
    with tempfile.NamedTemporaryFile("w", suffix=".json") as f:
        json.dump({"cases": c.list}, f)
        f.flush()
        if a.keep:
            with open(a.keep, "w") as k:
                lines = (json.dumps(x, separators=(",", ":")) for x in c.list)
                k.write('{"cases": [\n' + ",\n".join(lines) + "\n]}\n")
        sys.exit(subprocess.call([a.runner, f.name]))


if __name__ == "__main__":
    main()
