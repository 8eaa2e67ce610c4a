#!/usr/bin/env python3
"""Questions that a model answers right after pruning: by share of experts kept, calibration set and method.

  prune_accuracy.py --heirloom build/release/heirloom --model MODEL --questions EVAL [--each N] [--longest TOKENS] [--parallel 4]

EVAL is a folder of .jsonl questions. All of them are asked unless --each (the first N of every task) or --longest (leave out longer
prompts) says otherwise; the table says how many. Rows: the model itself; REAP at 0.875, 0.75 and 0.5 by text-only and mixed
calibration; at 0.5 pruning by frequency and five random prunings. Markdown on standard output, a line when it is known.
"""
import argparse
import glob
import json
import os
import statistics
import subprocess
import tempfile


def sample(args, path):
    count, seen = 0, {}
    with open(path, "w") as out:
        for file in sorted(glob.glob(os.path.join(args.questions, "*.jsonl"))):
            for line in open(file):
                item = json.loads(line)
                seen[item["task"]] = seen.get(item["task"], 0) + 1
                if (args.each and seen[item["task"]] > args.each) or (args.longest and item.get("prompt_tokens", 0) > args.longest):
                    continue
                if "image" in item:
                    item["image"] = os.path.abspath(os.path.join(args.questions, item["image"]))
                out.write(json.dumps(item) + "\n")
                count += 1
    return count


def right_answers(args, model, questions):
    out = subprocess.run([args.heirloom, "eval", model, questions, "--json", "--parallel", str(args.parallel), "--device", "cpu", "--log-level", "error"],
                         check=True, capture_output=True, text=True).stdout
    return sum(task["right"] for task in json.loads(out.splitlines()[-1])["summary"].values())


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--heirloom", required=True)
    parser.add_argument("--model", required=True)
    parser.add_argument("--questions", required=True)
    parser.add_argument("--each", type=int, default=0)
    parser.add_argument("--longest", type=int, default=0)
    parser.add_argument("--parallel", type=int, default=4)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        questions, pruned = os.path.join(folder, "questions.jsonl"), os.path.join(folder, "pruned.gguf")
        count = sample(args, questions)
        whole = right_answers(args, args.model, questions)
        print(f"{count} questions\n\n| experts kept | method | right | of the whole model's |\n|---|---|---|---|\n| all | - | {whole} | 100 % |", flush=True)

        def row(keep, name, options):
            subprocess.run([args.heirloom, "prune", args.model, pruned, "--keep", str(keep), "--device", "cpu", "--log-level", "error", *options],
                           check=True, stdout=subprocess.DEVNULL)
            right = right_answers(args, pruned, questions)
            print(f"| {keep} | {name} | {right} | {100 * right / whole:.1f} % |", flush=True)
            return right

        for keep in (0.875, 0.75, 0.5):
            for calibration in ("text", "mixed"):
                row(keep, f"REAP, {calibration}", ["--calibration", calibration])
        for calibration in ("text", "mixed"):
            row(0.5, f"frequency, {calibration}", ["--method", "frequency", "--calibration", calibration])
        random = [row(0.5, f"random {seed}", ["--method", "random", "--seed", str(seed)]) for seed in range(1, 6)]
        print(f"| 0.5 | mean of the five | {statistics.mean(random):.1f} | {100 * statistics.mean(random) / whole:.1f} % |")


if __name__ == "__main__":
    main()
