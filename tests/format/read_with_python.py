"""Prints as JSON what the `gguf` or `safetensors` package sees in a file: keys and values, tensors with type, shape and values.

    python read_with_python.py FILE        exit status 77: the package is not installed
"""
import json
import sys

try:
    import numpy as np
    if sys.argv[1].endswith(".gguf"):
        import gguf
    else:
        from safetensors import safe_open
except ImportError as error:
    print(error)
    sys.exit(77)


def read_gguf(path):
    reader = gguf.GGUFReader(path)
    keys = {k: f.contents() for k, f in reader.fields.items() if not k.startswith("GGUF.")}
    types = {k: [t.name for t in f.types] for k, f in reader.fields.items() if not k.startswith("GGUF.")}
    tensors = {}
    for t in reader.tensors:
        values = np.asarray(gguf.quants.dequantize(t.data, t.tensor_type), dtype=np.float64)
        tensors[t.name] = [t.tensor_type.name, [int(n) for n in t.shape], values.ravel().tolist()]
    return {"keys": keys, "types": types, "tensors": tensors}


def read_safetensors(path):
    with safe_open(path, framework="np") as file:
        tensors = {name: file.get_tensor(name) for name in file.keys()}
        return {"keys": file.metadata() or {}, "tensors": {
            name: [str(t.dtype), list(t.shape), t.astype(np.float64).ravel().tolist()] for name, t in tensors.items()}}


print(json.dumps((read_gguf if sys.argv[1].endswith(".gguf") else read_safetensors)(sys.argv[1])))
