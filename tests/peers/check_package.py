#!/usr/bin/env python3
"""Loads every function of every .mlpackage through coremltools' own reader
and type inference, and holds the description against the program.

    check_package.py [-q] PACKAGE.mlpackage...

coremltools rewrites Manifest.json when it closes a package: the bytes of the
whole tree must be the same before and after. Prints operations and states of
each function. Exit status 1 on any difference, 2 if nothing was given.
"""
import argparse
import collections
import gc
import hashlib
import logging
import os
import struct
import sys
import warnings

warnings.filterwarnings("ignore")
logging.disable(logging.WARNING)

import numpy as np  # noqa: E402
import coremltools as ct  # noqa: E402
from coremltools.converters.mil.frontend.milproto.load import load  # noqa: E402
from coremltools.libmilstoragepython import (  # noqa: E402
    _BlobStorageReader as BlobReader)

F = ct.proto.FeatureTypes_pb2.ArrayFeatureType
M = ct.proto.MIL_pb2
ARRAY = {M.FLOAT16: F.FLOAT16, M.FLOAT32: F.FLOAT32, M.INT32: F.INT32}
BLOB = {1: "fp16", 2: "float", 3: "uint8", 4: "int8", 6: "int16", 7: "uint16",
        8: "int4", 9: "uint1", 10: "uint2", 11: "uint4", 12: "uint3",
        13: "uint6", 14: "int32", 15: "uint32"}
BITS = {1: 16, 2: 32, 3: 8, 4: 8, 5: 16, 6: 16, 7: 16, 8: 4, 9: 1, 10: 2,
        11: 4, 12: 3, 13: 6, 14: 32, 15: 32}


class Difference(Exception):
    pass


def need(ok, text):
    if not ok:
        raise Difference(text)


def tree_hash(path):
    out = []
    for base, dirs, files in os.walk(path):
        dirs.sort()
        for name in sorted(files):
            full = os.path.join(base, name)
            with open(full, "rb") as f:
                h = hashlib.sha256()
                while block := f.read(1 << 20):
                    h.update(block)
            out.append((os.path.relpath(full, path), h.hexdigest()))
    return out


def dims(tensor):
    return [d.constant.size if d.WhichOneof("dimension") == "constant" else None
            for d in tensor.dimensions]


def fits(shape, want):
    return len(shape) == len(want) and all(
        w is None or w == s for s, w in zip(shape, want))


def check_array(where, array, tensor, kind):
    want = dims(tensor)
    need(array.dataType == ARRAY.get(tensor.dataType),
         f"{where}: described type {array.dataType}, program "
         f"{M.DataType.Name(tensor.dataType)}")
    shape = list(array.shape)
    flexible = array.WhichOneof("ShapeFlexibility")
    if None not in want:
        need(flexible is None, f"{where}: a fixed shape described as flexible")
        if not (kind == "output" and not shape):
            need(shape == want, f"{where}: described {shape}, program {want}")
        return
    need(kind != "state", f"{where}: a state of open shape")
    if kind == "output":
        need(not shape or fits(shape, want),
             f"{where}: described {shape}, program {want}")
        return
    need(flexible is not None, f"{where}: an open shape described as fixed")
    need(fits(shape, want), f"{where}: default {shape}, program {want}")
    if flexible == "enumeratedShapes":
        shapes = [list(s.shape) for s in array.enumeratedShapes.shapes]
        need(shape in shapes, f"{where}: default {shape} not in {shapes}")
        for s in shapes:
            need(fits(s, want), f"{where}: accepts {s}, program {want}")
    else:
        for i, r in enumerate(array.shapeRange.sizeRanges):
            if want[i] is not None:
                need(r.lowerBound == r.upperBound == want[i],
                     f"{where}: a range in fixed dimension {i}")


def check_features(where, features, types, kind):
    """features: of the description; types: name -> tensor type."""
    names = [f.name for f in features]
    need(len(set(names)) == len(names), f"{where}: {kind}s described twice")
    need(set(names) == set(types),
         f"{where}: {kind}s {sorted(names)} described, the program has "
         f"{sorted(types)}")
    for f in features:
        which = f.type.WhichOneof("Type")
        at = f"{where}: {kind} '{f.name}'"
        if kind == "state":
            need(which == "stateType", f"{at}: described as {which}")
            check_array(at, f.type.stateType.arrayType, types[f.name], kind)
        elif which == "imageType":
            need(len(types[f.name].dimensions) == 4, f"{at}: image of rank != 4")
        else:
            need(which == "multiArrayType", f"{at}: described as {which}")
            check_array(at, f.type.multiArrayType, types[f.name], kind)


def raw_types(function, block):
    inputs, states, made = {}, {}, {}
    for i in function.inputs:
        if i.type.WhichOneof("type") == "stateType":
            states[i.name] = i.type.stateType.wrappedType.tensorType
        else:
            inputs[i.name] = i.type.tensorType
    for op in block.operations:
        for o in op.outputs:
            need(o.name not in made and o.name not in inputs
                 and o.name not in states, f"name '{o.name}' defined twice")
            made[o.name] = o.type.tensorType
    outputs = {}
    for name in block.outputs:
        need(name in made, f"output '{name}' is no result of an operation")
        outputs[name] = made[name]
    return inputs, states, outputs, made


def check_declared(where, pymil, block, made):
    """Declared types against coremltools' inference, consts included."""
    for op in pymil.operations:
        if not op.op_type.startswith("constexpr_") and op.op_type != "const":
            continue  # the loader compares the others itself
        for out in op.outputs:
            if out.name not in made:
                continue  # made by the loader for an inline value
            want = [None if not isinstance(d, (int, np.integer)) else int(d)
                    for d in out.shape]
            got = dims(made[out.name])
            need(got == want, f"{where}: '{out.name}' declared {got}, "
                 f"inferred {want}")
    for op in block.operations:
        if op.type != "const":
            continue
        val = op.attributes["val"].type.tensorType
        need(val.SerializeToString(deterministic=True)
             == op.outputs[0].type.tensorType.SerializeToString(
                 deterministic=True),
             f"{where}: const '{op.outputs[0].name}': declared type differs")


def check_weights(path, decode):
    """Walks weight.bin by the format's rules, and reads it with coremltools'
    reader. Returns {offset: (code, elements)}."""
    if not os.path.exists(path):
        return {}
    size = os.path.getsize(path)
    reader = BlobReader(path)
    blobs, at, end = {}, 64, 0
    with open(path, "rb") as f:
        count, version = struct.unpack("<II", f.read(8))
        need(version == 2, f"weight file version {version}")
        need(f.read(56) == bytes(56), "weight file: header not zero")
        while at < size:
            f.seek(at)
            head = f.read(64)
            need(len(head) == 64, f"weight file: cut record at {at}")
            magic, code, n, off, pad = struct.unpack("<IIQQQ", head[:32])
            need(magic == 0xDEADBEEF, f"weight file: no record at {at}")
            need(head[32:] == bytes(32), f"weight file: record {at} not zero")
            need(off == at + 64, f"weight file: data of {at} at {off}")
            need(off + n <= size, f"weight file: {at} reaches beyond the end")
            bits = 8 * n - pad
            need(pad < 8 and bits % BITS[code] == 0,
                 f"weight file: {at}: {n} bytes, {pad} bits of padding")
            elems = bits // BITS[code]
            if decode and code in BLOB:
                got = np.asarray(
                    getattr(reader, f"read_{BLOB[code]}_data")(at)).size
                need(got == elems, f"weight file: {at}: {got} elements read, "
                     f"{elems} stored")
            blobs[at] = (code, elems)
            end = off + n
            at = (end + 63) // 64 * 64
    need(end == size, f"weight file: {size - end} bytes behind the last blob")
    need(count == len(blobs), f"weight file: count {count}, {len(blobs)} blobs")
    return blobs


def blob_refs(message):
    """Offsets of all blob values below a message."""
    if isinstance(message, M.Value) \
            and message.WhichOneof("value") == "blobFileValue":
        yield message.blobFileValue
        return
    for field, value in message.ListFields():
        if field.type != field.TYPE_MESSAGE:
            continue
        if field.message_type.GetOptions().map_entry:
            for v in value.values():
                if hasattr(v, "ListFields"):
                    yield from blob_refs(v)
        elif hasattr(value, "ListFields"):
            yield from blob_refs(value)
        else:
            for v in value:
                yield from blob_refs(v)


def summary(block, quiet):
    hist = collections.Counter(op.type for op in block.operations)
    if not quiet:
        print("    ops:", ", ".join(f"{k} {n}" for k, n in sorted(hist.items())))
    return sum(hist.values())


def check(path, quiet):
    before = tree_hash(path)
    model = ct.models.MLModel(path, skip_model_load=True)
    spec = model.get_spec()
    desc = spec.description
    need(spec.WhichOneof("Type") == "mlProgram", "no ML Program")
    need(not spec.isUpdatable, "is updatable")
    need(spec.mlProgram.version == 1, "program version")
    need(not spec.mlProgram.docString, "program docString")
    need(set(spec.mlProgram.attributes) <= {"buildInfo"}, "program attributes")
    blobs = check_weights(os.path.join(model.weights_dir, "weight.bin"), True)
    prog = load(spec, specification_version=spec.specificationVersion,
                file_weights_dir=model.weights_dir)
    prog.validate()
    prog._check_early_error_out_for_invalid_program()

    functions = spec.mlProgram.functions
    multi = bool(desc.functions) or bool(desc.defaultFunctionName)
    if multi:
        need(not desc.input and not desc.output and not desc.state,
             "features at top level beside functions")
        lists = {f.name: f for f in desc.functions}
        need(len(lists) == len(desc.functions), "a function described twice")
        need(set(lists) == set(functions),
             f"functions {sorted(lists)} described, the program has "
             f"{sorted(functions)}")
        need(desc.defaultFunctionName in lists,
             f"default function '{desc.defaultFunctionName}'")
    else:
        need(list(functions) == ["main"], f"functions {sorted(functions)}")
        lists = {"main": desc}

    used = set()
    for name in sorted(functions):
        f = functions[name]
        need(set(f.block_specializations) == {f.opset},
             f"{name}: blocks {list(f.block_specializations)}, opset {f.opset}")
        block = f.block_specializations[f.opset]
        where = f"function '{name}'"
        inputs, states, outputs, made = raw_types(f, block)
        d = lists[name]
        check_features(where, d.input, inputs, "input")
        check_features(where, d.output, outputs, "output")
        check_features(where, d.state, states, "state")
        check_declared(where, prog.functions[name], block, made)
        refs = list(blob_refs(block))
        for r in refs:
            need(r.fileName == "@model_path/weights/weight.bin",
                 f"{where}: weights in '{r.fileName}'")
            need(r.offset in blobs, f"{where}: no blob at {r.offset}")
            used.add(r.offset)
        if not quiet:
            print(f"  {name}: {f.opset}, {len(inputs)} inputs, "
                  f"{len(outputs)} outputs, {len(states)} states")
            for s, t in states.items():
                print(f"    state {s}: {M.DataType.Name(t.dataType)} {dims(t)}")
        summary(block, quiet)
    need(used == set(blobs), f"{len(set(blobs) - used)} blobs that nothing uses")
    # As long as any of these lives, the manifest is not rewritten.
    del model, spec, prog, desc, functions, lists
    gc.collect()
    need(tree_hash(path) == before, "coremltools changed bytes on opening it")
    return len(blobs)


def main():
    a = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    a.add_argument("-q", "--quiet", action="store_true")
    a.add_argument("package", nargs="+")
    a = a.parse_args()
    bad = 0
    for path in a.package:
        try:
            n = check(path.rstrip("/"), a.quiet)
            print(f"ok {os.path.basename(path.rstrip('/'))}: {n} blobs")
        except Exception as e:  # any complaint of coremltools is a finding
            bad += 1
            text = " ".join(str(e).split())[:500]
            print(f"DIFFERS {os.path.basename(path.rstrip('/'))}: "
                  f"{type(e).__name__}: {text}")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
