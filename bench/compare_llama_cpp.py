#!/usr/bin/env python3
"""Decode and prefill of heirloom and llama.cpp on the CPU, on the same file, interleaved: one sample of each in turn.

  compare_llama_cpp.py --heirloom build/release/heirloom --llama WORKDIR/bin/llama-bench-native FILE.gguf...
      [--threads 2] [--decode 64] [--prefill 947] [--rounds 5] [--cpu-isa TIER] [--json OUT]

Each sample is a process of its own that loads the file, warms up once and measures once; medians, ratios and their spread
(minimum and maximum over the rounds) are printed as a Markdown table. Run it on an otherwise idle machine.
"""
import argparse
import json
import os
import statistics
import subprocess
import sys


def ours(args, path):
    command = [args.heirloom, "bench", path, "--json", "--log-level", "warning", "--device", "cpu", "--threads", str(args.threads), "--repeat", "1",
               "--prefill", str(args.prefill), "--decode", str(args.decode)]
    if args.cpu_isa:
        command += ["--cpu-isa", args.cpu_isa]
    report = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    rates = {r["test"]: r["tok_s"]["median"] for r in report["results"]}
    decode = next(r for r in report["results"] if r["test"] == "decode")
    return rates["decode"], rates["prefill"], decode["bandwidth_share"], report["machine"]["read_gb_s"]


def theirs(args, path):
    command = [args.llama, "-m", path, "-t", str(args.threads), "-p", str(args.prefill), "-n", str(args.decode), "-r", "1", "-o", "json"]
    rows = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    decode = next(r["avg_ts"] for r in rows if r["n_gen"] > 0)
    prefill = next(r["avg_ts"] for r in rows if r["n_prompt"] > 0)
    return decode, prefill


def spread(values):
    return f"{statistics.median(values):.2f} ({min(values):.2f}-{max(values):.2f})"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--heirloom", required=True)
    parser.add_argument("--llama", required=True)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--decode", type=int, default=64)
    parser.add_argument("--prefill", type=int, default=947)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--cpu-isa", default="")
    parser.add_argument("--json", default="")
    parser.add_argument("files", nargs="+")
    args = parser.parse_args()

    samples = []
    print("| file | decode tok/s, ours | llama.cpp | ratio | of read bandwidth | prefill tok/s, ours | llama.cpp | ratio |")
    print("|---|---|---|---|---|---|---|---|")
    for path in args.files:
        rows = []
        for round_number in range(args.rounds):
            rows.append((ours(args, path), theirs(args, path)))
            print(f"{os.path.basename(path)} round {round_number + 1}: {rows[-1]}  load {os.getloadavg()[0]:.1f}", file=sys.stderr)
        samples.append({"file": os.path.basename(path), "rows": rows})
        decode_ratio = [mine[0] / peer[0] for mine, peer in rows]
        prefill_ratio = [mine[1] / peer[1] for mine, peer in rows]
        print(f"| {os.path.basename(path)} | {spread([m[0] for m, _ in rows])} | {spread([p[0] for _, p in rows])} | {spread(decode_ratio)} "
              f"| {spread([m[2] for m, _ in rows])} | {spread([m[1] for m, _ in rows])} | {spread([p[1] for _, p in rows])} "
              f"| {spread(prefill_ratio)} |", flush=True)
    if args.json:
        with open(args.json, "w") as out:
            json.dump({"arguments": vars(args), "samples": samples}, out, indent=1)


if __name__ == "__main__":
    main()
