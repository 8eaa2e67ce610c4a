"""Makes the seed files of the GGUF and safetensors fuzzers: small valid files, and the broken ones of public failure reports.
Inputs that a fuzzer found are added to the same folders by hand.

    python make_format_seeds.py OUT_FOLDER     (tests/fuzz/corpus)
"""
import sys
from pathlib import Path
from struct import pack

out = Path(sys.argv[1])


def gs(b):
    return pack("<Q", len(b)) + b


def kv(key, kind, value):
    return gs(key) + pack("<I", kind) + value


def head(tensors, keys, version=3):
    return b"GGUF" + pack("<IQQ", version, tensors, keys)


def tensor(name, dims, kind, offset):
    return gs(name) + pack("<I", len(dims)) + b"".join(pack("<Q", d) for d in dims) + pack("<IQ", kind, offset)


def pad(b, n=32):
    return b + bytes(-len(b) % n)


scalars = [(b"u8", 0, b"\x07"), (b"i8", 1, b"\xff"), (b"u16", 2, b"\1\2"), (b"i16", 3, b"\xfe\xff"), (b"u32", 4, pack("<I", 9)),
           (b"i32", 5, pack("<i", -9)), (b"f32", 6, pack("<f", 1.5)), (b"bool", 7, b"\1"), (b"s", 8, gs(b"text")),
           (b"u64", 10, pack("<Q", 1 << 40)), (b"i64", 11, pack("<q", -5)), (b"f64", 12, pack("<d", 1e300))]
arrays = [(b"as", 9, pack("<IQ", 8, 2) + gs(b"a") + gs(b"")), (b"ai", 9, pack("<IQ", 5, 2) + pack("<ii", -1, 3)),
          (b"af", 9, pack("<IQ", 6, 1) + pack("<f", 2)), (b"ab", 9, pack("<IQ", 7, 2) + b"\1\0"), (b"ae", 9, pack("<IQ", 8, 0))]
types = {0: (1, 4), 1: (1, 2), 2: (32, 18), 3: (32, 20), 6: (32, 22), 7: (32, 24), 8: (32, 34), 10: (256, 84), 11: (256, 110),
         12: (256, 144), 13: (256, 176), 14: (256, 210), 17: (256, 74), 20: (32, 18), 23: (256, 136), 24: (1, 1), 30: (1, 2),
         39: (32, 17)}


def every_type():
    table, data = b"", b""
    for kind, (block, size) in types.items():
        data = pad(data)
        table += tensor(b"t%d" % kind, [block, 2], kind, len(data))
        data += bytes(i * 37 % 251 for i in range(2 * size))
    return pad(head(len(types), 0) + table) + data


gguf = {
    "empty": head(0, 0), "version2": head(0, 0, 2), "scalars": head(0, len(scalars)) + b"".join(kv(*s) for s in scalars),
    "arrays": head(0, len(arrays)) + b"".join(kv(*a) for a in arrays), "every_type": every_type(),
    "aligned64": pad(head(1, 1) + kv(b"general.alignment", 4, pack("<I", 64)) + tensor(b"t", [4], 0, 0), 64) + bytes(16),
    "g01": head(0, 1) + gs(b"a") + pack("<IIQ", 9, 4, 2**63), "g02_keys": head(0, 2**61), "g02_tensors": head(2**61, 0),
    "g03": pad(head(1, 0) + tensor(b"t", [64, 64], 1, 0)) + bytes(100),
    "g04": pad(head(1, 0) + tensor(b"t", [2**42 + 1, 2**22], 0, 0)) + bytes(64),
    "g07": pad(head(1, 1) + kv(b"general.alignment", 4, pack("<I", 2**31)) + tensor(b"t", [4], 0, 0)) + bytes(16),
    "g16_big_endian": head(0, 0, 0x03000000), "twice": pad(head(2, 0) + tensor(b"t", [4], 0, 0) + tensor(b"t", [4], 0, 32)) + bytes(64),
}


def st(header, data=b""):
    return pack("<Q", len(header)) + header + data


def entry(name, dtype, shape, begin, end):
    return '"%s":{"dtype":"%s","shape":%s,"data_offsets":[%d,%d]}' % (name, dtype, shape, begin, end)


def headed(*entries):
    return ("{" + ",".join(entries) + "}").encode()


safetensors = {
    "empty": st(b"{}"), "two": st(headed(entry("a", "F32", [2, 2], 0, 16), entry("b", "BF16", [3], 16, 22)), bytes(22)),
    "metadata": st(b'{"__metadata__":{"format":"pt"},' + headed(entry("s", "I64", [], 0, 8))[1:], bytes(8)),
    "types": st(headed(*[entry(t, t, [2], 2 * o, 2 * o + 2 * n) for t, o, n in
                         [("F64", 0, 8), ("I64", 8, 8), ("I32", 16, 4), ("F16", 20, 2), ("I16", 22, 2), ("I8", 24, 1), ("U8", 25, 1), ("BOOL", 26, 1)]]), bytes(54)),
    "unknown_field": st(b'{"t":{"dtype":"U8","extra":[{"a":[1]}],"shape":[1],"data_offsets":[0,1]}}', b"x"),
    "s01": pack("<Q", 200_000_000) + b"{}", "s02": st(headed(entry("t", "F32", [1000, 1000], 0, 4)), bytes(4)),
    "s03_same": st(headed(entry("a", "F32", [4], 0, 16), entry("b", "F32", [4], 0, 16)), bytes(16)),
    "s03_part": st(headed(entry("a", "F32", [4], 0, 16), entry("b", "F32", [4], 8, 24)), bytes(24)),
    "s07_array": st(b"[]"), "s07_null": st(b"null"), "s07_number": st(b'{"t":5}'), "s07_deep": st(b"[" * 1000),
}

for folder, files in (("gguf", gguf), ("safetensors", safetensors)):
    (out / folder).mkdir(parents=True, exist_ok=True)
    for name, data in files.items():
        (out / folder / name).write_bytes(data)
