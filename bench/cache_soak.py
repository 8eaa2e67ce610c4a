#!/usr/bin/env python3
"""Random load on the prefix cache: does it hold its budgets, does memory stay, are answers always the same?

  cache_soak.py --heirloom build/release/heirloom [--model demo-moe] [--minutes 10] [--cache-ram MIB] [--cache-disk MIB]

Starts a server with small budgets in memory and on disk. Clients ask random trees of prompts (token ids): each goes on from, cuts
or changes an earlier one; some leave before their answer, some repeat an earlier prompt, whose greedy answer must be the one it
had. Ends with a summary; exit code 1 when a budget was exceeded by more than 1 %, memory grew or an answer changed.
"""
import argparse
import json
import pathlib
import random
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--heirloom", required=True)
parser.add_argument("--model", default="demo-moe")
parser.add_argument("--minutes", type=float, default=10)
parser.add_argument("--clients", type=int, default=4)
parser.add_argument("--cache-ram", type=int, default=64, help="MiB")
parser.add_argument("--cache-disk", type=int, default=128, help="MiB")
parser.add_argument("--growth", type=float, default=1.02, help="allowed growth of memory from the middle third of the run (the cache is full by then) to its end")
args = parser.parse_args()

work = pathlib.Path(tempfile.mkdtemp(prefix="cache-soak-"))
with socket.socket() as s:
    s.bind(("127.0.0.1", 0))
    port = s.getsockname()[1]
server = subprocess.Popen([args.heirloom, "serve", args.model, "--device", "cpu", "--port", str(port), "--parallel", "3", "--ctx", "4096", "--cache-ram",
                           f"{args.cache_ram}MiB", "--cache-dir", str(work / "cache"), "--cache-disk", f"{args.cache_disk}MiB", "--log-level", "warning"])
until = time.monotonic() + args.minutes * 60
lock = threading.Lock()
history, answers, wrong = [], {}, []
counts = {"asked": 0, "repeats checked": 0, "left": 0}


def post(prompt, answer_tokens, timeout=300):
    body = json.dumps({"prompt": prompt, "max_tokens": answer_tokens, "temperature": 0, "ignore_eos": True}).encode()
    request = urllib.request.Request(f"http://127.0.0.1:{port}/v1/completions", body, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=timeout) as reply:
        return json.load(reply)["choices"][0]["text"]


def client(seed):
    rng = random.Random(seed)
    while time.monotonic() < until:
        with lock:
            base = list(rng.choice(history)) if history and rng.random() < 0.85 else []
            repeat = rng.choice(sorted(answers)) if answers and rng.random() < 0.15 else None
        prompt = list(repeat) if repeat else base
        if not repeat:
            if prompt and rng.random() < 0.7:
                prompt = prompt[:1 + rng.randrange(len(prompt))]
            prompt = (prompt + [rng.randrange(300, 2000) for _ in range(1 + rng.randrange(300))])[-3000:]
        if not repeat and rng.random() < 0.1:
            try:
                post(prompt, 200, timeout=0.05)
            except OSError:
                counts["left"] += 1
            continue
        try:
            text = post(prompt, 8)
        except OSError as error:
            wrong.append(f"request failed: {error}")
            continue
        with lock:
            counts["asked"] += 1
            key = tuple(prompt)
            if key in answers:
                counts["repeats checked"] += 1
                if answers[key] != text:
                    wrong.append(f"another answer to a prompt of {len(prompt)} tokens: {text!r}, before {answers[key]!r}")
            elif len(answers) < 200:
                answers[key] = text
            history.append(prompt)
            if len(history) > 60:
                history.pop(rng.randrange(len(history)))


def metrics():
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=30) as reply:
        text = reply.read().decode()
    return {name: float(value) for name, value in re.findall(r"^heirloom_(\w+) ([0-9.e+]+)$", text, re.M)}


def rss_mib():
    return int(re.search(r"VmRSS:\s+(\d+)", pathlib.Path(f"/proc/{server.pid}/status").read_text()).group(1)) / 1024


def folder_bytes():
    total = 0
    for path in (work / "cache").rglob("*"):
        try:
            total += path.stat().st_size if path.is_file() else 0
        except OSError:
            pass  # removed meanwhile
    return total


while True:
    try:
        metrics()
        break
    except OSError:
        if server.poll() is not None:
            sys.exit("the server ended")
        time.sleep(0.2)
threads = [threading.Thread(target=client, args=(seed,)) for seed in range(args.clients)]
for thread in threads:
    thread.start()
ram, disk, memory = [], [], []
while time.monotonic() < until:
    time.sleep(1)
    now = metrics()
    ram.append(now["cache_ram_bytes"] / (args.cache_ram << 20))
    disk.append(folder_bytes() / (args.cache_disk << 20))
    memory.append(rss_mib())
    if len(memory) % 30 == 0:
        print(f"{len(memory)} s: RSS {memory[-1]:.1f} MiB, cache {100 * ram[-1]:.1f} % of its budget, disk {100 * disk[-1]:.1f} %, {counts}", flush=True)
for thread in threads:
    thread.join()
now = metrics()
server.terminate()
server.wait()
shutil.rmtree(work, ignore_errors=True)

third = max(1, len(memory) // 3)
print(f"{counts}, hits {now['cache_hits_total']:.0f}, misses {now['cache_misses_total']:.0f}, evictions {now['cache_evictions_total']:.0f}, "
      f"tokens from snapshots {100 * now['cached_tokens_total'] / now['prompt_tokens_total']:.0f} %")
print(f"memory budget: at most {100 * max(ram):.2f} % used, {100 * min(ram[third:]):.2f} % at least after the first third; disk budget: at most {100 * max(disk):.2f} %")
middle = memory[third:2 * third] or memory
print(f"RSS: highest in the first third {max(memory[:third]):.1f} MiB, in the middle one {max(middle):.1f} MiB, in the last {max(memory[-third:]):.1f} MiB")
if max(ram) > 1.01:
    wrong.append("the memory budget was exceeded")
if max(disk) > 1.01:
    wrong.append("the disk budget was exceeded")
if max(memory[-third:]) > args.growth * max(middle):
    wrong.append("memory grew")
for line in wrong[:20]:
    print("WRONG", line)
sys.exit(1 if wrong else 0)
