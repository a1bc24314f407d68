#!/usr/bin/env python3
"""Holds compiled models against the packages that they were made of, with
coremltools' message definitions and a transliteration of its own.

    check_compiled.py X.mlpackage[:X.mlmodelc]...

The compiled model is taken to lie beside the package unless it is named. The
functions in model.mil must be, to the character, what the protobuf says by the
rules of Apple's form of text; coremldata.bin must hold the same description;
analytics the hash of the source; the weight files must be the same, and every
offset a record of theirs. Exit status 1 on any difference, 2 if nothing was
given.
"""
import base64
import hashlib
import logging
import math
import os
import re
import struct
import sys
import warnings

warnings.filterwarnings("ignore")
logging.disable(logging.WARNING)

import numpy as np  # noqa: E402
import coremltools as ct  # noqa: E402

M = ct.proto.MIL_pb2
NAMES = {M.BOOL: "bool", M.STRING: "string", M.FLOAT16: "fp16",
         M.FLOAT32: "fp32", M.FLOAT64: "fp64", M.INT8: "int8",
         M.INT16: "int16", M.INT32: "int32", M.INT64: "int64", M.INT4: "int4",
         M.UINT8: "uint8", M.UINT16: "uint16", M.UINT32: "uint32",
         M.UINT64: "uint64", M.UINT4: "uint4", M.UINT2: "uint2",
         M.UINT1: "uint1", M.UINT6: "uint6", M.UINT3: "uint3"}
BYTES = {M.FLOAT16: "<f2", M.FLOAT32: "<f4", M.INT8: "<i1", M.UINT8: "<u1",
         M.INT16: "<i2", M.UINT16: "<u2", M.UINT32: "<u4", M.UINT64: "<u8",
         M.INT32: "<i4"}
BITS = {M.INT4: 4, M.UINT4: 4, M.UINT2: 2, M.UINT1: 1, M.UINT6: 6, M.UINT3: 3}
COMPILER = {6: 5, 7: 5, 8: 8}  # 9 from specification version 9 on


class Difference(Exception):
    pass


def need(ok, text):
    if not ok:
        raise Difference(text)


def number(v):
    if isinstance(v, (bool, np.bool_)):
        return "true" if v else "false"
    if isinstance(v, (int, np.integer)):
        return str(int(v))
    v = float(v)
    if math.isnan(v):
        return "nan"
    if math.isinf(v):
        return "-inf" if v < 0 else "inf"
    mantissa, exponent = v.hex().split("p")
    mantissa = mantissa.rstrip("0") if "." in mantissa else mantissa
    mantissa = mantissa.rstrip(".").replace("0x0.", "0x0")
    return f"{mantissa}p{exponent}"


def unpack(raw, bits, n, signed):
    """Elements of less than a byte, from the lowest bit on."""
    whole = int.from_bytes(raw, "little")
    out = [whole >> (bits * i) & ((1 << bits) - 1) for i in range(n)]
    return [x - (1 << bits) if signed and x >> (bits - 1) else x for x in out]


class Text:
    def __init__(self, spec):
        self.bare = spec.specificationVersion >= 9
        self.offsets = []

    def scalar(self, dtype):
        name = NAMES[dtype]
        return name if self.bare else f"tensor<{name}, []>"

    def type(self, t):
        kind = t.WhichOneof("type")
        if kind == "stateType":
            return f"state<{self.type(t.stateType.wrappedType)}>"
        need(kind == "tensorType", f"a type of kind {kind}")
        t = t.tensorType
        if not t.rank:
            return self.scalar(t.dataType)
        dims = [str(d.constant.size) if d.WhichOneof("dimension") == "constant"
                else "?" for d in t.dimensions]
        return f"tensor<{NAMES[t.dataType]}, [{', '.join(dims)}]>"

    def string(self, s):
        return f'{self.scalar(M.STRING)}("{s}")'

    def elements(self, v):
        dtype = v.type.tensorType.dataType
        t = v.immediateValue.tensor
        kind = t.WhichOneof("value")
        if kind == "strings":
            return ['"' + s + '"' for s in t.strings.values]
        if kind == "bytes" and dtype in BITS:
            n = math.prod(d.constant.size
                          for d in v.type.tensorType.dimensions)
            return [number(x) for x in unpack(t.bytes.values, BITS[dtype], n,
                                              dtype == M.INT4)]
        if kind == "bytes":
            return [number(x) for x in
                    np.frombuffer(t.bytes.values, BYTES[dtype])]
        return [number(x) for x in getattr(t, kind).values]

    def nest(self, items, dims):
        if not dims:
            return next(items)
        return "[" + ", ".join(self.nest(items, dims[1:])
                               for _ in range(dims[0])) + "]"

    def value(self, v):
        if v.WhichOneof("value") == "blobFileValue":
            b = v.blobFileValue
            self.offsets.append((b.fileName, b.offset))
            return (f"{self.type(v.type)}(BLOBFILE(path = "
                    f"{self.string(b.fileName)}, offset = "
                    f"{self.scalar(M.UINT64)}({b.offset})))")
        dims = [d.constant.size for d in v.type.tensorType.dimensions]
        text = "[]" if 0 in dims else self.nest(iter(self.elements(v)), dims)
        return f"{self.type(v.type)}({text})"

    def argument(self, a):
        items = [b.name if b.WhichOneof("binding") == "name"
                 else self.value(b.value) for b in a.arguments]
        return items[0] if len(items) == 1 else f"({', '.join(items)})"

    def operation(self, op):
        need(not op.blocks, "a block inside an operation")
        outs = ", ".join(f"{self.type(o.type)} {o.name}" for o in op.outputs)
        args = ", ".join(f"{k} = {self.argument(op.inputs[k])}"
                         for k in sorted(op.inputs))
        attrs = ", ".join(f"{k} = {self.value(op.attributes[k])}"
                          for k in sorted(op.attributes))
        return (f"            {outs}{' = ' if outs else ''}{op.type}({args})"
                f"{'[' + attrs + ']' if attrs else ''};")

    def function(self, name, f):
        block = f.block_specializations[f.opset]
        opset = "ios" + str(int(f.opset[len("CoreML"):]) + 10)
        params = sorted(f.inputs, key=lambda p: p.name)
        params = ", ".join(f"{self.type(p.type)} {p.name}" for p in params)
        return ([f"    func {name}<{opset}>({params}) {{"] +
                [self.operation(o) for o in block.operations] +
                [f"        }} -> ({', '.join(block.outputs)});"])

    def program(self, p):
        lines = []
        for name in sorted(p.functions):
            lines += self.function(name, p.functions[name])
        return lines + ["}"]


def check_text(spec, compiled):
    want = Text(spec)
    lines = want.program(spec.mlProgram)
    with open(os.path.join(compiled, "model.mil"), encoding="utf-8") as f:
        got = f.read()
    head, build, brace, *got = got.split("\n")
    need(head == ("program(1.3)" if want.bare else "program(1.0)"), head)
    need(build.startswith("[buildInfo = dict<") and brace == "{", build)
    # What makes shapes flexible is of the description, not of the program.
    got = [re.sub(r"^(    func .*\)) \[FlexibleShapeInformation = .*\] \{$",
                  r"\1 {", x) for x in got]
    need(len(lines) == len(got), f"{len(got)} lines, {len(lines)} expected")
    for i, (a, b) in enumerate(zip(lines, got)):
        need(a == b, f"line {i + 4}:\n  want {a}\n  got  {b}")
    return want.offsets


def check_description(spec, compiled):
    with open(os.path.join(compiled, "coremldata.bin"), "rb") as f:
        data = f.read()
    n = struct.unpack_from("<Q", data, 0x4b)[0]
    version = spec.specificationVersion
    need(struct.unpack_from("<IQ", data) == (502, COMPILER.get(version, 9)),
         "kind or version of the compiler")
    need(struct.unpack_from("<Q", data, 0x2b)[0] == version, "model version")
    records = data[0x53 + n:]
    functions = max(1, len(spec.description.functions))
    need(records == struct.pack("<QQ", 502, 0) * functions, "records")
    got = ct.proto.Model_pb2.ModelDescription.FromString(data[0x53:0x53 + n])
    want = ct.proto.Model_pb2.ModelDescription()
    want.CopyFrom(spec.description)
    want.metadata.SetInParent()
    need(got == want, "the description")


def check_analytics(model, compiled):
    with open(model, "rb") as f:
        digest = base64.b64encode(hashlib.sha256(f.read()).digest())
    with open(os.path.join(compiled, "analytics/coremldata.bin"), "rb") as f:
        need(digest in f.read(), "the hash in analytics")


def check_weights(data, compiled, offsets):
    for name, offset in set(offsets):
        name = name.replace("@model_path/", "")
        a, b = os.path.join(data, name), os.path.join(compiled, name)
        with open(a, "rb") as x, open(b, "rb") as y:
            need(os.path.samefile(a, b) or x.read() == y.read(), b)
            y.seek(offset)
            need(y.read(4) == b"\xef\xbe\xad\xde", f"no record at {offset}")


def check(package, compiled):
    data = os.path.join(package, "Data/com.apple.CoreML")
    model = os.path.join(data, "model.mlmodel")
    spec = ct.proto.Model_pb2.Model()
    with open(model, "rb") as f:
        spec.ParseFromString(f.read())
    offsets = check_text(spec, compiled)
    check_description(spec, compiled)
    check_analytics(model, compiled)
    check_weights(data, compiled, offsets)


def main():
    failed = 0
    if len(sys.argv) < 2:
        print(__doc__, file=sys.stderr)
        return 2
    for pair in sys.argv[1:]:
        package, _, compiled = pair.partition(":")
        package = package.rstrip("/")
        compiled = compiled or package[:-len("package")] + "modelc"
        try:
            check(package, compiled)
        except Difference as e:
            failed += 1
            print(f"{compiled}: {e}")
    print(f"{len(sys.argv) - 1 - failed} of {len(sys.argv) - 1} models are "
          "what the protobuf says")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
