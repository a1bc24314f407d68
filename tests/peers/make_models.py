#!/usr/bin/env python3
"""Packages that coremltools makes, for anemll-compile to take or to refuse.

    make_models.py FOLDER

Writes NAME.mlpackage for each row below: every target of deployment, float32,
states, several functions, enumerated and ranged shapes, an image, recurrent
cells, names that are no identifiers, and every kind of compressed weight. Those
that no compiled form of ours has yet (control flow, lists, class labels) are
called refused-NAME.mlpackage.
"""
import logging
import os
import sys
import warnings

warnings.filterwarnings("ignore")
logging.disable(logging.WARNING)

import numpy as np  # noqa: E402
import coremltools as ct  # noqa: E402
import coremltools.optimize.coreml as cto  # noqa: E402
from coremltools.converters.mil import Builder as mb  # noqa: E402
from coremltools.converters.mil.mil import get_new_symbol, types  # noqa: E402

T = ct.target
RNG = np.random.default_rng(0)
W = RNG.standard_normal((8, 4, 3, 3)).astype(np.float32)
L = RNG.standard_normal((16, 512)).astype(np.float32)
B = RNG.standard_normal(16).astype(np.float32)


def program(target, *shapes, **options):
    """Decorator: the function's graph, converted."""
    def make(f):
        specs = [mb.TensorSpec(shape=s) if isinstance(s, tuple) else s
                 for s in shapes]
        prog = mb.program(input_specs=specs, opset_version=target)(f)
        return ct.convert(prog, minimum_deployment_target=target, **options)
    return make


def plain(target, precision=None):
    @program(target, (1, 4, 8, 8), compute_precision=precision)
    def m(x):
        y = mb.relu(x=mb.conv(x=x, weight=W, pad_type="same", name="my/conv.1"))
        y = mb.linear(x=mb.reshape(x=y, shape=(1, 512)), weight=L, bias=B)
        z = mb.topk(x=y, k=3, axis=1)
        return y, z[0], z[1]
    return m


def state():
    @program(T.iOS18, (1, 4), mb.StateTensorSpec((1, 4), dtype=types.fp16))
    def m(x, s):
        y = mb.add(x=mb.read_state(input=s), y=mb.cast(x=x, dtype="fp16"))
        y = mb.coreml_update_state(state=s, value=y)
        return mb.mul(x=y, y=np.float16(2))
    return m


def flexible(shape, target):
    fixed = ct.TensorType("y", shape=(1, 4))

    @program(target, (1, get_new_symbol()), (1, 4),
             inputs=[ct.TensorType("x", shape=shape), fixed])
    def m(x, y):
        s = mb.reduce_sum(x=x, axes=[1], keep_dims=True)
        return mb.add(x=s, y=y), mb.relu(x=x)
    return m


def image():
    @program(T.iOS17, (1, 3, 8, 8),
             inputs=[ct.ImageType("x", shape=(1, 3, 8, 8), scale=1 / 127.5,
                                  bias=[-1, -1, -1])])
    def m(x):
        return mb.sigmoid(x=x)
    return m


def recurrent():
    zero = np.zeros((1, 4), np.float32)

    @program(T.iOS17, (5, 1, 4))
    def m(x):
        return mb.lstm(x=x, initial_h=zero, initial_c=zero, weight_ih=L[:, :4],
                       weight_hh=L[:, 4:8], bias=B, direction="forward",
                       output_sequence=True)[0]
    return m


def names():
    @program(T.iOS18, (1,), (1, 2, 3, 4, 5))
    def m(tensor, b):
        return mb.add(x=tensor, y=b, name="a.b/c:0")
    return m


def branch():
    @program(T.iOS17, (1, 4))
    def m(x):
        p = mb.greater(x=mb.reduce_sum(x=x, axes=[0, 1]), y=0.)
        return mb.cond(pred=p, _true_fn=lambda: mb.relu(x=x),
                       _false_fn=lambda: mb.sigmoid(x=x))
    return m


def lists():
    @program(T.iOS16, (4,))
    def m(x):
        y = mb.make_list(init_length=2, elem_shape=(4,), dynamic_length=False)
        return mb.list_read(ls=mb.list_write(ls=y, index=0, value=x), index=0)
    return m


def labels():
    @program(T.iOS16, (1, 3),
             classifier_config=ct.ClassifierConfig(["a", "b", "c"]))
    def m(x):
        return mb.softmax(x=x, axis=-1)
    return m


def compress(target, how, config, **options):
    small = dict(weight_threshold=16)
    return how(plain(target), cto.OptimizationConfig(
        global_config=config(**options, **small)))


def tables(target, bits, **options):
    return compress(target, cto.palettize_weights, cto.OpPalettizerConfig,
                    mode="kmeans", nbits=bits, **options)


def integers(target, **options):
    return compress(target, cto.linear_quantize_weights,
                    cto.OpLinearQuantizerConfig, **options)


def sparse(target):
    return compress(target, cto.prune_weights, cto.OpMagnitudePrunerConfig,
                    target_sparsity=0.5)


def joint():
    return cto.palettize_weights(
        sparse(T.iOS18),
        cto.OptimizationConfig(global_config=cto.OpPalettizerConfig(
            mode="kmeans", nbits=4, weight_threshold=16)),
        joint_compression=True)


def several(folder):
    d = ct.utils.MultiFunctionDescriptor()
    for name in ("state", "plain-iOS18"):  # the default is not the first
        d.add_function(f"{folder}/{name}.mlpackage", "main",
                       "f" + str(len(name)))
    d.default_function_name = "f11"
    ct.utils.save_multifunction(d, f"{folder}/several.mlpackage")


ENUMERATED = ct.EnumeratedShapes(shapes=[(1, 1), (1, 4), (1, 16)],
                                 default=(1, 4))
GROUPS = dict(granularity="per_grouped_channel", group_size=4)
ROWS = {
    "plain-f32": lambda: plain(T.iOS17, ct.precision.FLOAT32),
    "state": state,
    "enumerated": lambda: flexible(ENUMERATED, T.iOS17),
    "enumerated-iOS18": lambda: flexible(ENUMERATED, T.iOS18),
    "range": lambda: flexible(ct.Shape((1, ct.RangeDim(1, 64, default=8))),
                              T.iOS17),
    "image": image,
    "recurrent": recurrent,
    "names": names,
    "tables-iOS16": lambda: tables(T.iOS16, 4),
    "tables-groups": lambda: tables(T.iOS18, 4, **GROUPS),
    "tables-scaled": lambda: tables(T.iOS18, 4, enable_per_channel_scale=True,
                                    **GROUPS),
    "tables-vectors": lambda: tables(T.iOS18, 4, cluster_dim=4),
    "int8-iOS16": lambda: integers(T.iOS16, mode="linear_symmetric"),
    "int8-iOS18": lambda: integers(T.iOS18, mode="linear"),
    "int4-blocks": lambda: integers(T.iOS18, mode="linear", dtype="int4",
                                    granularity="per_block", block_size=4),
    "sparse-iOS16": lambda: sparse(T.iOS16),
    "sparse-iOS18": lambda: sparse(T.iOS18),
    "sparse-tables": joint,
    "refused-branch": branch,
    "refused-lists": lists,
    "refused-labels": labels,
}
for name in ("iOS15", "iOS16", "iOS17", "iOS18", "iOS26"):
    if hasattr(T, name):
        ROWS["plain-" + name] = lambda t=getattr(T, name): plain(t)
for b in (1, 2, 3, 6, 8):
    ROWS[f"tables-{b}"] = lambda b=b: tables(T.iOS18, b)


def main():
    if len(sys.argv) != 2:
        print(__doc__, file=sys.stderr)
        return 2
    os.makedirs(sys.argv[1])
    for name, make in ROWS.items():
        make().save(f"{sys.argv[1]}/{name}.mlpackage")
    several(sys.argv[1])
    print(f"{len(ROWS) + 1} models")
    return 0


if __name__ == "__main__":
    sys.exit(main())
