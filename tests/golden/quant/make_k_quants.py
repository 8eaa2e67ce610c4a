"""Makes k_quants.safetensors: rows of several distributions and ggml's own K-quant bytes of them, with and without importance.

    python make_k_quants.py LIBGGML.so OUT.safetensors

LIBGGML.so is any build of ggml's base library (it needs `ggml_quantize_chunk`), e.g. libggml-base.so of llama.cpp.
"""
import ctypes
import sys

import numpy as np
from safetensors.numpy import save_file

TYPES = {"Q4_K": (12, 144), "Q5_K": (13, 176), "Q6_K": (14, 210)}


def rows():
    rng = np.random.default_rng(20)
    n = 1024
    outlier = rng.normal(0, 0.02, n)
    outlier[::97] *= 25
    return np.stack([
        rng.normal(0, 0.02, n),
        rng.laplace(0, 0.02, n),
        rng.standard_t(3, n) * 0.01,
        np.abs(rng.normal(0, 1, n)),
        rng.uniform(-1, 1, n),
        outlier,
        rng.normal(0, 1, n) * (rng.random(n) < 0.1),
        rng.normal(0.5, 0.1, n) * np.repeat(10.0 ** rng.uniform(-3, 0, n // 64), 64),
    ]).astype(np.float32)


def main():
    ggml = ctypes.CDLL(sys.argv[1])
    ggml.ggml_quantize_chunk.restype = ctypes.c_size_t
    ggml.ggml_quantize_chunk.argtypes = [ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64,
                                         ctypes.c_int64, ctypes.c_void_p]
    x = rows()
    importance = np.exp(np.random.default_rng(21).normal(0, 1.5, x.shape[1])).astype(np.float32)
    out = {"x": x, "importance": importance}
    for name, (number, block_bytes) in TYPES.items():
        for suffix, weights in (("ggml", None), ("ggml_weighted", importance.ctypes.data)):
            packed = np.zeros((x.shape[0], x.shape[1] // 256 * block_bytes), np.uint8)
            ggml.ggml_quantize_chunk(number, x.ctypes.data, packed.ctypes.data, 0, x.shape[0], x.shape[1], weights)
            out[f"{name}.{suffix}"] = packed
    save_file(out, sys.argv[2])


main()
