#!/usr/bin/env python3
"""Palettes against other implementations, on the same tensors.

    kmeans_peer.py BENCH_QUANT

BENCH_QUANT is the benchmark program, whose --dump writes tables and packed
indices. For every width, several groups and distributions:
  - kmeans1d (exact) gives the optimum of each group: ours may exceed it by
    what tables in fp16 cost, and by nothing else;
  - every index is that of the nearest table entry;
  - coremltools unpacks, packs again and decompresses to the same;
  - where coremltools' palettizer is exact too, ours is never worse.
Exit status: 0 all agree, 1 a difference, 77 a package is missing.
"""
import subprocess
import sys
import tempfile
from pathlib import Path
from types import SimpleNamespace

try:
    import kmeans1d
    import numpy as np
    from coremltools.models.neural_network import quantization_utils
    from coremltools.optimize._utils import (
        lut_to_dense, pack_elements_into_bits,
        restore_elements_from_packed_bits)
    from coremltools.optimize.coreml._quantization_passes import (
        palettize_weights)
except ImportError as missing:
    print(f"skipped: {missing}")
    sys.exit(77)

WIDTHS = (1, 2, 3, 4, 6, 8)


def to_bf16(x):
    """Bit patterns, nearest even."""
    u = x.astype(np.float32).view(np.uint32)
    return ((u + 0x7FFF + ((u >> 16) & 1)) >> 16).astype(np.uint16)


def from_bf16(bits):
    return (bits.astype(np.uint32) << 16).view(np.float32).astype(np.float64)


def tensors(rng):
    jitter = np.exp(0.25 * rng.standard_normal((16, 1)))
    yield "gauss", 0.02 * jitter * rng.standard_normal((16, 256))
    yield "student", 0.02 * jitter * rng.standard_t(5, (16, 256))
    yield "sparse", np.where(rng.random((16, 256)) < 0.9, 0,
                             rng.standard_normal((16, 256)))
    far = 0.02 * rng.standard_normal((16, 256))
    far[3, 7] = 200
    yield "far", far
    yield "offset", 8 + 0.25 * rng.standard_normal((16, 256))
    yield "few", np.round(rng.standard_normal((16, 256)) * 3) / 8
    yield "ties", rng.integers(-20, 21, (16, 250)) / 64.0
    yield "odd", 0.1 * rng.standard_normal((15, 37))


def ours(program, bits, group, shape, fmt, raw, folder):
    rows, cols = shape
    source, out = Path(folder) / "in", Path(folder) / "out"
    source.write_bytes(raw.astype("<u2").tobytes())
    done = subprocess.run(
        [program, "--dump", str(bits), str(group), str(rows), str(cols), fmt,
         str(source), str(out)], check=True, capture_output=True, text=True)
    data = out.read_bytes()
    size = rows // group * 2 ** bits * 2
    tables = np.frombuffer(data[:size], "<f2").reshape(rows // group, -1)
    packed = np.frombuffer(data[size:], np.uint8)
    return tables, packed, float(done.stdout)


def group_errors(v, table, indices, k):
    """Error of one group, of the optimum, and of the optimum's means in fp16;
    or a complaint."""
    t = table.astype(np.float64)
    distance = np.abs(v[:, None] - t[None, :])
    # argmin takes the first of equals: the lower entry, as we do.
    if np.any(np.argmin(distance, axis=1) != indices):
        return "an index is not that of the nearest entry"
    got = float(np.sum((v - t[indices]) ** 2))
    if len(np.unique(v)) <= k:
        return got, 0.0, got
    clusters, centroids = kmeans1d.cluster(v, k)
    centroids = np.array(centroids)
    half = np.unique(centroids.astype(np.float16).astype(np.float64))
    rounded = float(np.sum(np.min(np.abs(v[:, None] - half[None, :]),
                                  axis=1) ** 2))
    return got, float(np.sum((v - centroids[clusters]) ** 2)), rounded


def check(fmt, bits, group, values, raw, program, folder):
    """A complaint, or None."""
    shape, k = values.shape, 2 ** bits
    groups = shape[0] // group
    tables, packed, sse = ours(program, bits, group, shape, fmt, raw, folder)
    if np.any(np.diff(tables.astype(np.float64), axis=1) < 0):
        return "a table is not ascending"
    indices = restore_elements_from_packed_bits(packed, bits, values.size)
    indices = indices.reshape(shape)
    if not np.array_equal(pack_elements_into_bits(indices, bits), packed):
        return "coremltools packs the indices to other bytes"
    got = best = rounded = 0.0
    for g in range(groups):
        rows = slice(g * group, (g + 1) * group)
        r = group_errors(values[rows].ravel(), tables[g], indices[rows].ravel(),
                         k)
        if isinstance(r, str):
            return f"group {g}: {r}"
        got, best, rounded = got + r[0], best + r[1], rounded + r[2]
    if abs(got - sse) > 1e-10 * got:
        return f"error {sse:.12g} reported, {got:.12g} counted"
    # A table entry in fp16 is off by at most 2^-11 of itself.
    slack = float(np.sum(values ** 2)) * 2.0 ** -22
    if not best * (1 - 1e-9) <= got <= best * (1 + 1e-6) + slack:
        return f"error {got:.12g}, optimum {best:.12g}"
    if got > rounded * (1 + 1e-9):
        return (f"error {got:.12g}, the optimum's means rounded to fp16 "
                f"{rounded:.12g}")
    dense = lut_to_dense(indices, tables.reshape(groups, 1, k, 1))
    rows = np.arange(shape[0]) // group
    if not np.array_equal(dense, tables[rows[:, None], indices]):
        return "coremltools decompresses to other values"
    return None


def weighted_kmeans1d(values, k, weights):
    """What coremltools expects of kmeans1d and some releases lack."""
    result = kmeans1d.cluster(np.repeat(values, weights), k)
    first = np.concatenate([[0], np.cumsum(weights)[:-1]])
    return kmeans1d.Clustered(list(np.array(result.clusters)[first]),
                              result.centroids)


def check_palettizer(program, folder, rng):
    """coremltools' palettizer as a whole; it clusters exactly where a group
    has 10,000 fp16 weights or more, and does not assign again after rounding
    its table."""
    half = (0.02 * rng.standard_t(5, (80, 512))).astype(np.float16)
    values, failed = half.astype(np.float64), 0
    quantization_utils._kmeans1d = SimpleNamespace(cluster=weighted_kmeans1d)
    quantization_utils._HAS_KMEANS1D = True
    for bits in WIDTHS:
        for group in (40, 80):
            lut = palettize_weights.blockwise_compress(
                half, "KMEANS", bits, [group, 0])
            theirs = lut_to_dense(lut.indices, lut.lut).astype(np.float64)
            tables, packed, sse = ours(program, bits, group, half.shape, "f16",
                                       half.view(np.uint16), folder)
            indices = restore_elements_from_packed_bits(packed, bits,
                                                        half.size)
            rows = np.arange(80) // group
            mine = tables[rows[:, None], indices.reshape(half.shape)]
            error = float(np.sum((values - theirs) ** 2))
            same = np.mean(mine.astype(np.float64) == theirs)
            good = sse <= error * (1 + 1e-12) and same >= 0.98
            failed += not good
            print(f"palettizer, {bits} bits, groups of {group}: error "
                  f"{sse:.9g}, coremltools {error:.9g}, equal weights "
                  f"{100 * same:.2f} %{'' if good else '  <-- differs'}")
    return failed


def main():
    program = sys.argv[1]
    rng = np.random.default_rng(7)
    failed = checks = 0
    with tempfile.TemporaryDirectory() as folder:
        for name, real in tensors(rng):
            for fmt in ("bf16", "f16"):
                if fmt == "bf16":
                    raw = to_bf16(real)
                    values = from_bf16(raw)
                else:
                    half = real.astype(np.float16)
                    raw, values = half.view(np.uint16), half.astype(np.float64)
                rows = values.shape[0]
                groups = sorted({1, rows} | {g for g in (2, 8)
                                             if rows % g == 0})
                for bits in WIDTHS:
                    for group in groups:
                        wrong = check(fmt, bits, group, values, raw, program,
                                      folder)
                        checks += 1
                        if wrong:
                            failed += 1
                            print(f"{name}, {fmt}, {bits} bits, groups of "
                                  f"{group}: {wrong}")
        print(f"{checks} matrices compared")
        failed += check_palettizer(program, folder, rng)
    print("all agree" if not failed else f"{failed} differ")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
