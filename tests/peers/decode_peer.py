#!/usr/bin/env python3
"""Compressed constants as coremltools and as our own reader decode them.

    decode_peer.py BUILD

Converts made checkpoints at every width of tables, per group and per tensor,
and with integers of 4 and 8 bits per block, per channel and per tensor; opens
the packages with coremltools, lets it decompress every constant, and compares
all values with those of BUILD/helpers/dump_weights. Exit status: 0 all agree,
1 a difference, 77 a package is missing.
"""
import logging
import subprocess
import sys
import tempfile
import warnings
from pathlib import Path

warnings.filterwarnings("ignore")
logging.disable(logging.CRITICAL)
try:
    import coremltools as ct
    import numpy as np
    from coremltools.converters.mil.frontend.milproto.load import load
    from coremltools.converters.mil.mil import types
except ImportError as missing:
    print(f"skipped: {missing}")
    sys.exit(77)

FORMS = [["--lut", lut] for b in (1, 2, 3, 4, 6, 8)
         for lut in (str(b), f"{b},tensor")]
FORMS += [["--lut", "4,2"]]
FORMS += [["--quant", q] for q in ("int8", "int4", "int8,8", "int4,8",
                                   "int8,tensor", "int4,tensor")]


def theirs(package):
    """Name -> list of decompressed arrays, of every function of every part."""
    found = {}
    for path in sorted(Path(package).glob("*.mlpackage")):
        model = ct.models.MLModel(str(path), skip_model_load=True)
        spec = model.get_spec()
        prog = load(spec, specification_version=spec.specificationVersion,
                    file_weights_dir=model.weights_dir)
        for f in prog.functions.values():
            for op in f.operations:
                if op.op_type in ("constexpr_lut_to_dense",
                                  "constexpr_blockwise_shift_scale"):
                    found.setdefault(op.outputs[0].name, []).append(
                        (op, op.materialized_val_inference()))
    return found


def described(op, kind, bits, groups, cols):
    """The operation is of the kind, width and blocks that ours says."""
    if kind == "lut":
        return (op.op_type == "constexpr_lut_to_dense"
                and op.lut.shape[-2] == 2 ** bits
                and np.prod(op.lut.shape[:-2]) == groups)
    blocks = np.prod(op.scale.shape)
    want = 1 if groups == 0 else op.data.shape[0] * (cols // groups)
    name = types.builtin_to_string(op.data.dtype)
    return (op.op_type == "constexpr_blockwise_shift_scale"
            and name == f"int{bits}" and blocks == want)


def compare(build, package, checkpoint, folder):
    """(constants, complaint or None)"""
    out = Path(folder) / "values"
    lines = subprocess.run(
        [f"{build}/helpers/dump_weights", package, checkpoint, out],
        check=True, capture_output=True, text=True).stdout.splitlines()
    values, at = np.fromfile(out, np.float32), 0
    found, count = theirs(package), 0
    for line in lines:
        name, kind, bits, groups, rows, cols = line.split()
        rows, cols = int(rows), int(cols)
        mine = values[at:at + rows * cols].astype(np.float16).ravel()
        at += rows * cols
        same = [described(op, kind, int(bits), int(groups), cols)
                and a.dtype == np.float16 and np.array_equal(a.ravel(), mine)
                for op, a in found.get(name, [])]
        if not any(same):
            return count, f"'{name}' ({line}) is other in coremltools"
        found[name] = [x for x, s in zip(found[name], same) if not s]
        count += 1
    left = [n for n, x in found.items() if x]
    if at != values.size or left or not count:
        return count, f"constants that our reader has not: {left}"
    return count, None


def main():
    build, failed, total = sys.argv[1], 0, 0
    with tempfile.TemporaryDirectory() as folder:
        checkpoint = f"{folder}/checkpoint"
        subprocess.run([f"{build}/anemll-fixtures", "checkpoint", "-q",
                        "--arch", "qwen3", "--like", "tiny", "-o", checkpoint],
                       check=True)
        for i, form in enumerate(FORMS):
            package = f"{folder}/{i}"
            subprocess.run([f"{build}/anemll-convert", "-q", "--no-gate",
                            "--hf", checkpoint, "--ctx", "64", *form, "-o",
                            package], check=True, capture_output=True)
            count, wrong = compare(build, package, checkpoint, folder)
            total += count
            if wrong:
                failed += 1
                print(f"{' '.join(form)}: {wrong}")
    print(f"{total} constants in {len(FORMS)} forms: "
          + ("all agree" if not failed else f"{failed} forms differ"))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
