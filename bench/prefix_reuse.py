#!/usr/bin/env python3
"""What the prefix cache saves, beside llama.cpp's server on the same file and the same prompts (token ids), in one run.

  prefix_reuse.py --heirloom build/release/heirloom --llama WORKDIR/bin/llama-server --dense FILE.gguf [--moe FILE.gguf]
      [--rounds 5] [--threads 2] [--restart-tokens 8000] [--only compare,restart,copy] [--json OUT]

Every round uses new prompts, asks both servers in turn (--moe: first one, then the other) and takes one token of each answer. Times are the client's, from the
request to the whole reply, over HTTP on the same machine. Prints Markdown tables: medians with minimum and maximum.
  repeat    a prompt of 2,000 tokens (947 on --moe), then the same again
  suffix    the same with 20 tokens more
  change    the same up to token 1,500, 1,400 or 1,000, then other tokens up to 2,000
  short     another prompt that shares the first 100 tokens
  restart   8,000 tokens, kill -9, start again, the same prompt: from disk (heirloom only)
  copy      prefill of 2,000 tokens with the cache on and off (heirloom only): what snapshots cost
"""
import argparse
import json
import os
import pathlib
import random
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request

TOKENS = 2000


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


class Server:
    """A running server; ask() gives (milliseconds, tokens that were computed)."""

    def __init__(self, command, log):
        self.port = free_port()
        self.log = open(log, "ab")
        self.process = subprocess.Popen([*command, "--port", str(self.port)], stdout=self.log, stderr=self.log)
        deadline = time.monotonic() + 600
        while time.monotonic() < deadline:
            if self.process.poll() is not None:
                sys.exit(f"{command[0]} ended; see {log}")
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/health", timeout=5) as reply:
                    if reply.status == 200:
                        return
            except OSError:
                time.sleep(0.2)
        sys.exit(f"{command[0]} did not start; see {log}")

    def post(self, path, body):
        request = urllib.request.Request(f"http://127.0.0.1:{self.port}{path}", json.dumps(body).encode(), {"Content-Type": "application/json"})
        begin = time.perf_counter()
        with urllib.request.urlopen(request, timeout=3600) as reply:
            answer = json.load(reply)
        return (time.perf_counter() - begin) * 1000, answer

    def stop(self, kill=False):
        self.process.send_signal(signal.SIGKILL if kill else signal.SIGINT)
        self.process.wait()
        self.log.close()


class Heirloom(Server):
    def ask(self, tokens):
        ms, answer = self.post("/v1/completions", {"prompt": tokens, "max_tokens": 1, "temperature": 0, "ignore_eos": True})
        usage = answer["usage"]
        assert usage["prompt_tokens"] == len(tokens), usage
        return ms, len(tokens) - usage["prompt_tokens_details"]["cached_tokens"]


class Llama(Server):
    def ask(self, tokens):
        ms, answer = self.post("/completion", {"prompt": tokens, "n_predict": 1, "temperature": 0, "cache_prompt": True})
        return ms, answer["timings"]["prompt_n"]


def tokens(rng, count):
    return [rng.randrange(1000, 100000) for _ in range(count)]


def changed(rng, prompt, at):
    return prompt[:at] + tokens(rng, len(prompt) - at)


def compare(title, start, length, rounds, samples, changes, together):
    """One table. `together`: both servers run, asked in turn; else one after the other (for files that fit in memory once)."""
    rows = {}
    groups = [list(start)] if together else [[name] for name in start]
    for group in groups:
        servers = {name: start[name]() for name in group}
        try:
            for round_number in range(rounds):
                rng = random.Random(1000 * round_number + length)
                prompt = tokens(rng, length)
                plan = [("cold", prompt), ("repeat", prompt), ("suffix of 20", prompt + tokens(rng, 20))]
                plan += [(f"change after {at}", changed(rng, prompt, at)) for at in changes]
                if changes:
                    plan.append(("100 shared", changed(rng, prompt, 100)))
                for what, asked in plan:
                    for name, server in servers.items():
                        ms, computed = server.ask(asked)
                        rows.setdefault(what, {}).setdefault(name, []).append((ms, computed))
                        print(f"{title} round {round_number + 1} {name} {what}: {ms:.1f} ms, {computed} computed, load {os.getloadavg()[0]:.1f}", file=sys.stderr)
        finally:
            for server in servers.values():
                server.stop()
    samples[title] = rows
    names = list(start)
    print(f"\n{title}: {length} tokens, {rounds} rounds\n")
    print("| request | " + " | ".join(f"{name} ms | computed | less than cold" for name in names) + " |")
    print("|---|" + "---|---|---|" * len(names))
    for what, by_name in rows.items():
        cells = []
        for name in names:
            times = [ms for ms, _ in by_name[name]]
            ratios = [cold / ms for (cold, _), ms in zip(rows["cold"][name], times)]
            computed = sorted({n for _, n in by_name[name]})
            shown = str(computed[0]) if len(computed) == 1 else f"{computed[0]}-{computed[-1]}"
            cells.append(f"{statistics.median(times):.1f} ({min(times):.1f}-{max(times):.1f}) | {shown} | {statistics.median(ratios):.1f}x ({min(ratios):.1f}-{max(ratios):.1f})")
        print(f"| {what} | " + " | ".join(cells) + " |", flush=True)


def restart(args, work, samples):
    results = []
    for round_number in range(args.restart_rounds):
        folder = work / "cache"
        shutil.rmtree(folder, ignore_errors=True)
        command = [args.heirloom, "serve", args.dense, "--device", "cpu", "--threads", str(args.threads), "--ctx", "12288", "--cache-ram", "1GiB",
                   "--cache-dir", str(folder), "--log-level", "info"]
        prompt = tokens(random.Random(77 + round_number), args.restart_tokens)
        server = Heirloom(command, work / "heirloom-restart.log")
        cold, computed = server.ask(prompt)
        assert computed == len(prompt)
        time.sleep(2)  # the contract: on disk within 2 s of the end of its request
        server.stop(kill=True)
        server = Heirloom(command, work / "heirloom-restart.log")
        warm, computed = server.ask(prompt)
        again, _ = server.ask(prompt)
        size = sum(f.stat().st_size for f in folder.rglob("*") if f.is_file())
        server.stop()
        results.append((cold, warm, computed, size, again))
        print(f"restart round {round_number + 1}: cold {cold:.0f} ms, from disk {warm:.0f} ms, {computed} computed, {size / 1e6:.0f} MB, from memory {again:.1f} ms", file=sys.stderr)
    samples["restart"] = results
    print(f"\nrestart after kill -9, {args.restart_tokens} tokens:\n\n| cold ms | first hit from disk ms | computed | folder MB | less than cold |\n|---|---|---|---|---|")
    for cold, warm, computed, size, _ in results:
        print(f"| {cold:.0f} | {warm:.0f} | {computed} | {size / 1e6:.0f} | {cold / warm:.1f}x |", flush=True)


def copy_cost(args, work, samples):
    def begin(ram):
        return Heirloom([args.heirloom, "serve", args.dense, "--device", "cpu", "--threads", str(args.threads), "--ctx", "4096", "--cache-ram", ram],
                        work / "heirloom-copy.log")
    servers = {"on": begin("1GiB"), "off": begin("0")}
    pairs = []
    try:
        for round_number in range(-1, args.rounds):  # the first, uncounted round touches the memory that later ones reuse
            prompt = tokens(random.Random(500 + round_number), TOKENS)
            order = ["on", "off"] if round_number % 2 else ["off", "on"]
            times = {name: servers[name].ask(prompt)[0] for name in order}
            if round_number >= 0:
                pairs.append((times["on"], times["off"]))
            print(f"copy round {round_number + 1}: on {times['on']:.0f} ms, off {times['off']:.0f} ms", file=sys.stderr)
    finally:
        for server in servers.values():
            server.stop()
    samples["copy"] = pairs
    ratios = [100 * (on / off - 1) for on, off in pairs]
    print(f"\ncost of the snapshots of a prefill of {TOKENS} tokens: median {statistics.median(ratios):+.1f} % ({min(ratios):+.1f} to {max(ratios):+.1f}) "
          f"of {statistics.median(off for _, off in pairs):.0f} ms")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--heirloom", required=True)
    parser.add_argument("--llama", help="llama-server; without it heirloom alone")
    parser.add_argument("--dense", help="for everything but the 947-token repeat")
    parser.add_argument("--moe", help="for the 947-token repeat")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--moe-rounds", type=int, default=2)
    parser.add_argument("--restart-rounds", type=int, default=1)
    parser.add_argument("--restart-tokens", type=int, default=8000)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--only", default="compare,restart,copy")
    parser.add_argument("--json", default="")
    args = parser.parse_args()
    work = pathlib.Path(tempfile.mkdtemp(prefix="prefix-reuse-"))
    samples = {}
    wanted = args.only.split(",")

    def starts(path):
        start = {"heirloom": lambda: Heirloom([args.heirloom, "serve", path, "--device", "cpu", "--threads", str(args.threads), "--ctx", "4096",
                                               "--cache-ram", "1GiB"], work / "heirloom.log")}
        if args.llama:
            start["llama.cpp"] = lambda: Llama([args.llama, "-m", path, "-t", str(args.threads), "-c", "4096", "-np", "1"], work / "llama.log")
        return start

    if args.dense and "compare" in wanted:
        compare(pathlib.Path(args.dense).name, starts(args.dense), TOKENS, args.rounds, samples, [1500, 1400, 1000], True)
    if args.dense and "restart" in wanted:
        restart(args, work, samples)
    if args.dense and "copy" in wanted:
        copy_cost(args, work, samples)
    if args.moe and "compare" in wanted:
        compare(pathlib.Path(args.moe).name, starts(args.moe), 947, args.moe_rounds, samples, [], False)
    if args.json:
        pathlib.Path(args.json).write_text(json.dumps(samples, indent=1))
    shutil.rmtree(work, ignore_errors=True)


if __name__ == "__main__":
    main()
