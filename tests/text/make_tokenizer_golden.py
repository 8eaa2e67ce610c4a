#!/usr/bin/env python3
"""Writes tests/golden/tokenizer/random.json: ids that the `tokenizers` library gives for random and hostile strings, with the
small vocabulary of tests/golden/tokenizer/demo-tokenizer.json, once as it is and once with the Qwen2 pattern.

    python3 tests/text/make_tokenizer_golden.py OUT [N] [SEED]
"""
import json
import random
import sys
import unicodedata

from tokenizers import Tokenizer

SOURCE = "tests/golden/tokenizer/demo-tokenizer.json"
QWEN2 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")

WORDS = ["the", "Hello", "world", "it's", "I'LL", "don'T", "we've", "x'Re", "'s", "'\u017f", "'\u017fa", "'d", "naïve", "e\u0301", "가", "\u1100\u1161\u11a8",
         "ﬁ", "\u212b", "Å", "A\u030a", "ÅÅ", "\u0344", "\u0958", "日本語", "😀", "👨\u200d👩\u200d👧", "नमस्ते", "\u0e01\u0e33", "42", "3.14", "²", "Ⅷ", "१२",
         "<|im_end|>", "<|im_start|>", "<think>", "</think>", "<|im_end", "<|", "|>", "<image>", "<tool_call>", "<|im_end|>\u0338", "{}", "...", "--", "?!\n"]
SPACES = [" ", "  ", "   ", "\n", "\n\n", "\r\n", "\r", "\t", "\u00a0", "\u3000", "\u2028", "\u0085", "\x0b", "\x0c", "\x1c", "\u200b", "\ufeff", " \n ", "\n \n", "  \n  x"]
RANGES = [(0x20, 0x7f), (0, 0x20), (0x80, 0x100), (0x100, 0x250), (0x300, 0x370), (0x370, 0x400), (0x590, 0x700), (0x900, 0x980), (0xe00, 0xe80),
          (0x1100, 0x1200), (0x1e00, 0x1f00), (0x2000, 0x2070), (0x20d0, 0x2100), (0x2c00, 0x2d00), (0x3040, 0x3100), (0x4e00, 0x4f00),
          (0xa980, 0xaa00), (0xac00, 0xad00), (0xf900, 0xfb50), (0xfe00, 0xfe30), (0xff00, 0xfff0), (0x1d150, 0x1d170), (0x1f300, 0x1f700), (0x2f800, 0x2fa20),
          (0x10d40, 0x10d70), (0x1e4d0, 0x1e500), (0xe0100, 0xe01f0), (0, 0x110000)]


def char(rng):
    while True:
        a, b = rng.choice(RANGES)
        c = rng.randrange(a, b)
        if not 0xD800 <= c < 0xE000:
            return chr(c)


def string(rng):
    parts = []
    for _ in range(rng.randrange(1, 9)):
        kind = rng.randrange(6)
        if kind == 0:
            parts.append(rng.choice(WORDS))
        elif kind == 1:
            parts.append(rng.choice(SPACES) * rng.choice([1, 1, 1, 2, 5]))
        elif kind == 2:
            parts.append("".join(char(rng) for _ in range(rng.randrange(1, 5))))
        elif kind == 3:
            parts.append(char(rng) * rng.randrange(1, 40))
        elif kind == 4:  # a base with marks of mixed classes
            parts.append(rng.choice("aeoAqक가") + "".join(chr(rng.choice([0x300, 0x301, 0x316, 0x327, 0x328, 0x338, 0x345, 0x5b0, 0x93c, 0x1dc0, 0x11a8])) for _ in range(rng.randrange(1, 7))))
        else:
            s = rng.choice(WORDS)
            parts.append(unicodedata.normalize(rng.choice(["NFC", "NFD", "NFKD"]), s))
    return "".join(parts)


def main():
    out, n, seed = sys.argv[1], int((sys.argv + [0, 400])[2] or 400) if len(sys.argv) > 2 else 400, int(sys.argv[3]) if len(sys.argv) > 3 else 1
    config = json.load(open(SOURCE))
    qwen35 = Tokenizer.from_str(json.dumps(config))
    config["pre_tokenizer"]["pretokenizers"][0]["pattern"]["Regex"] = QWEN2
    qwen2 = Tokenizer.from_str(json.dumps(config))
    rng = random.Random(seed)
    rows = []
    for _ in range(n):
        s = string(rng)
        ids = qwen35.encode(s, add_special_tokens=False).ids
        row = {"text": s, "ids": ids}
        other = qwen2.encode(s, add_special_tokens=False).ids
        if other != ids:
            row["qwen2"] = other
        text = qwen35.decode(ids, skip_special_tokens=False)
        if text != s:
            row["decoded"] = text
        plain = qwen35.decode(ids, skip_special_tokens=True)
        if plain != text:
            row["without_special"] = plain
        rows.append(row)
    long = []
    # more than any stack or quadratic algorithm takes; ids as [id, run length]
    for unit, count in (("a", 2 << 20), ("\u0301", 1 << 20), (" ", 1 << 20), ("\n\r\n", 349525), ("\u0301\u0316", 1 << 18), ("a\u0301", 1 << 18), ("1", 1 << 18),
                        ("!", 1 << 18), ("<", 1 << 18), ("<|im_end|", 1 << 16), ("\t \n", 1 << 16)):
        runs = []
        for i in qwen35.encode(unit * count, add_special_tokens=False).ids:
            if runs and runs[-1][0] == i:
                runs[-1][1] += 1
            else:
                runs.append([i, 1])
        row = {"unit": unit, "count": count}
        if len(runs) < 100:
            row["runs"] = runs
        else:
            total, mixed = 0, 0
            for i, k in runs:
                for _ in range(k):
                    mixed = (mixed * 1000003 + i) % (1 << 61)
                    total += 1
            row["n"], row["hash"] = total, mixed  # hash = fold of hash * 1000003 + id modulo 2^61
        long.append(row)
    with open(out, "w") as f:
        f.write('{"rows": [\n' + ",\n".join(json.dumps(r, ensure_ascii=False, separators=(",", ":")) for r in rows) + '\n],\n"long": [\n'
                + ",\n".join(json.dumps(r, ensure_ascii=False) for r in long) + "\n]}\n")


main()
