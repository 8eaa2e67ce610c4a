#!/usr/bin/env python3
"""What a weight type costs: questions answered right, and how far the next-token distribution moves.

  quant_accuracy.py reference --model FOLDER --questions EVAL --out DUMPS [--items 3]
  quant_accuracy.py kl   --heirloom build/release/heirloom --model FOLDER --reference DUMPS [--types ...] [--tiers ...]
  quant_accuracy.py eval --heirloom build/release/heirloom --model FOLDER --questions EVAL [--types ...]

FOLDER is a Hugging Face checkpoint (a demo model), EVAL a folder of .jsonl questions. `reference` writes float32 logits of the
reference implementation (transformers) at every position of some text questions and their answers, in the layout that `heirloom
verify` reads; `kl` quantises the checkpoint to each type and prints the mean KL(reference || ours) that verify reports, by CPU tier;
`eval` prints right answers of `heirloom eval`. Tables are Markdown, on standard output. Needs: pip install torch transformers safetensors
(reference only).
"""
import argparse
import glob
import json
import os
import subprocess
import sys
import tempfile

TYPES = "bf16 f16 q8_0 q6_k q5_k q5_1 q5_0 q4_k q4_1 q4_0 mxfp4".split()
TIERS = "scalar ssse3 avx2 avx512 avx512_vnni amx".split()


def read_questions(folder):
    for path in sorted(glob.glob(os.path.join(folder, "*.jsonl"))):
        for line in open(path):
            yield json.loads(line)


def reference(args):
    import torch
    from safetensors.torch import save_file
    from transformers import AutoModelForImageTextToText, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(args.model)
    model = AutoModelForImageTextToText.from_pretrained(args.model, dtype=torch.float32).eval()
    os.makedirs(args.out, exist_ok=True)
    taken, rows = {}, 0
    for item in read_questions(args.questions):
        if "image" in item or item["prompt_tokens"] > 400 or taken.setdefault(item["task"], 0) >= args.items:
            continue
        taken[item["task"]] += 1
        prompt = tokenizer.apply_chat_template(item["messages"], tools=item.get("tools"), add_generation_prompt=True, tokenize=False,
                                               enable_thinking=item.get("enable_thinking", False))
        ids = tokenizer(prompt, add_special_tokens=False)["input_ids"] + item["hf"]["ids"]
        with torch.no_grad():
            logits = model(input_ids=torch.tensor([ids])).logits[0].float().contiguous()
        rows += len(ids)
        save_file({"input_ids": torch.tensor(ids, dtype=torch.int32), "logits": logits}, os.path.join(args.out, item["id"] + ".safetensors"))
    print(f"{sum(taken.values())} sequences, {rows} positions in {args.out}")


def quantized(args, folder, name):
    """The checkpoint as a GGUF of one type."""
    path = os.path.join(folder, name + ".gguf")
    subprocess.run([args.heirloom, "quantize", args.model, path, "--type", name, "--log-level", "error"], check=True)
    return path


def kl(args):
    tiers = args.tiers
    print("| type | bits a weight | " + " | ".join(tiers) + " |\n|---|---|" + "---|" * len(tiers))
    with tempfile.TemporaryDirectory() as folder:
        for name in args.types:
            path = quantized(args, folder, name)
            info = json.loads(subprocess.run([args.heirloom, "info", path, "--json"], check=True, capture_output=True).stdout)
            cells = []
            for tier in tiers:
                done = subprocess.run([args.heirloom, "verify", path, "--reference", args.reference, "--json", "--device", "cpu", "--cpu-isa", tier],
                                      capture_output=True, text=True)
                if done.returncode not in (0, 1):  # 1: beyond verify's tolerance, which is for float weights
                    sys.stderr.write(done.stderr)
                    cells.append("not here")
                    continue
                found = [stage["kl"] for stage in json.loads(done.stdout)["stages"] if "kl" in stage]
                cells.append(f"{sum(found) / len(found):.2e}")
            size = os.path.getsize(path) * 8 / info["parameters"]
            print(f"| {name} | {size:.1f} | " + " | ".join(cells) + " |", flush=True)
            os.remove(path)


def evaluate(args):
    files = sorted(glob.glob(os.path.join(args.questions, "*.jsonl")))
    print("| type | right |\n|---|---|")
    with tempfile.TemporaryDirectory() as folder:
        for name in args.types:
            path = quantized(args, folder, name)
            out = subprocess.run([args.heirloom, "eval", path, *files, "--json", "--parallel", "4", "--device", "cpu"], check=True, capture_output=True, text=True).stdout
            summary = json.loads(out.splitlines()[-1])["summary"].values()
            right, n = sum(s["right"] for s in summary), sum(s["n"] for s in summary)
            print(f"| {name} | {right}/{n} ({100 * right / n:.1f} %) |", flush=True)
            os.remove(path)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True)
    for name, action in (("reference", reference), ("kl", kl), ("eval", evaluate)):
        command = commands.add_parser(name)
        command.set_defaults(action=action)
        command.add_argument("--model", required=True)
        if name != "kl":
            command.add_argument("--questions", required=True)
        if name == "reference":
            command.add_argument("--out", required=True)
            command.add_argument("--items", type=int, default=3, help="questions of each task")
        else:
            command.add_argument("--heirloom", required=True)
            command.add_argument("--types", nargs="+", default=TYPES)
        if name == "kl":
            command.add_argument("--reference", required=True)
            command.add_argument("--tiers", nargs="+", default=TIERS)
    args = parser.parse_args()
    args.action(args)


if __name__ == "__main__":
    main()
