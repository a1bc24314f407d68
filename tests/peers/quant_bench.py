#!/usr/bin/env python3
"""Error and speed of other palettizers, for tests/bench/bench_quant.c.

    quant_bench.py FILE GROUP COLS

FILE: two tensors of equal size, bfloat16 rows of COLS values that fp16 holds
too. Prints, by tensor and bits, the least squared error of groups of GROUP
rows (kmeans1d) and what coremltools' palettize_weights leaves and takes, in
seconds of processor time on one thread:

    kmeans1d TENSOR BITS ERROR
    coremltools TENSOR BITS ERROR SECONDS
    missing WHY
"""
import os
import sys
import time

for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[name] = "1"
import logging  # noqa: E402
import warnings  # noqa: E402

logging.disable(logging.CRITICAL)
warnings.filterwarnings("ignore")
try:
    import kmeans1d
    import numpy as np
    import sklearn.cluster  # noqa: F401  what coremltools clusters with
    from coremltools.optimize._utils import lut_to_dense
    from coremltools.optimize.coreml._quantization_passes import (
        palettize_weights)
except ImportError as missing:
    print(f"missing {missing}")
    sys.exit(0)


def optimum(values, k):
    clusters, centroids = kmeans1d.cluster(values, k)
    return float(np.sum((values - np.array(centroids)[clusters]) ** 2))


def palettize(half, bits, group):
    """coremltools' own step for one constant, without reading or writing a
    model."""
    start = time.process_time()
    lut = palettize_weights.blockwise_compress(half, "KMEANS", bits,
                                               [group, 0])
    spent = time.process_time() - start
    dense = lut_to_dense(lut.indices, lut.lut).astype(np.float64)
    return float(np.sum((half.astype(np.float64) - dense) ** 2)), spent


def main():
    path, group, cols = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    raw = np.fromfile(path, "<u2").astype(np.uint32) << 16
    tensors = raw.view(np.float32).reshape(2, -1, cols)
    half = tensors.astype(np.float16)
    if not np.array_equal(half.astype(np.float32), tensors):
        sys.exit("values that fp16 does not hold")
    palettize(half[0, :group], 4, group)  # what is loaded at the first call
    for t in range(2):
        groups = tensors[t].reshape(-1, group * cols).astype(np.float64)
        for bits in (1, 2, 3, 4, 6, 8):
            error = sum(optimum(g, 2 ** bits) for g in groups)
            print("kmeans1d", t, bits, repr(error), flush=True)
            if bits < 4:
                continue
            error, spent = palettize(half[t], bits, group)
            print("coremltools", t, bits, repr(error), repr(spent), flush=True)


if __name__ == "__main__":
    main()
