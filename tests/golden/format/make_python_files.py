"""Makes python.gguf and python.safetensors with the `gguf` and `safetensors` packages: every metadata type, several tensor
types. The tests know the values.

    python make_python_files.py OUT_FOLDER
"""
import sys
from pathlib import Path

import gguf
import numpy as np
from gguf import GGMLQuantizationType as T
from safetensors.numpy import save_file

out = Path(sys.argv[1])
ramp = ((np.arange(96, dtype=np.float32) - 40) / 8).reshape(3, 32)

w = gguf.GGUFWriter(out / "python.gguf", "qwen35")
w.add_uint8("t.u8", 200)
w.add_int8("t.i8", -1)
w.add_uint16("t.u16", 65535)
w.add_int16("t.i16", -2)
w.add_uint32("t.u32", 4_000_000_000)
w.add_int32("t.i32", -7)
w.add_uint64("t.u64", 1 << 40)
w.add_int64("t.i64", -5)
w.add_float32("t.f32", 1.5)
w.add_float64("t.f64", 2.5)
w.add_bool("t.bool", True)
w.add_string("t.string", "häßlich\n")
w.add_array("t.strings", ["a", "Ġb", "ccc"])
w.add_array("t.ints", [-1, 300])
w.add_array("t.floats", [0.5, -2.0])
w.add_array("t.bools", [True, False])
w.add_tensor("ramp.f32", ramp)
w.add_tensor("ramp.f16", ramp.astype(np.float16))
for t in (T.BF16, T.Q8_0, T.Q4_0):
    w.add_tensor(f"ramp.{t.name.lower()}", gguf.quants.quantize(ramp, t), raw_dtype=t)
w.add_tensor("ints", np.arange(5, dtype=np.int32))
w.write_header_to_file()
w.write_kv_data_to_file()
w.write_tensors_to_file()
w.close()

save_file({"ramp": ramp, "half": ramp.astype(np.float16)[:, :3].copy(), "bytes": np.arange(5, dtype=np.uint8),
           "scalar": np.array(7, dtype=np.int64), "none": np.zeros((2, 0), np.float32)},
          out / "python.safetensors", metadata={"format": "np"})
