"""Throughput and latency of a running server: python server_load.py BASE_URL [--streams 1,8] [--tokens 128] [--prefill 4000]

Prints, for each number of concurrent streams, the total tokens/s and the median and p99 time between tokens; then the time between
tokens of a running stream while a long prompt prefills beside it. Works with any OpenAI-compatible server (ignore_eos keeps lengths equal).
"""
import argparse
import asyncio
import json
import random
import statistics
import time

import httpx

parser = argparse.ArgumentParser()
parser.add_argument("base")
parser.add_argument("--streams", default="1,8")
parser.add_argument("--tokens", type=int, default=128)
parser.add_argument("--prefill", type=int, default=4000, help="words of the long prompt; 0 leaves the test out")
args = parser.parse_args()


def words(count, seed):
    rng = random.Random(seed)
    return " ".join(rng.choice("stone river bird ship cloud tree wind house light road".split()) for _ in range(count))


async def stream(client, prompt, tokens, times):
    body = {"messages": [{"role": "user", "content": prompt}], "max_tokens": tokens, "temperature": 0, "ignore_eos": True, "stream": True,
            "stream_options": {"include_usage": True}}
    made = 0
    async with client.stream("POST", "/v1/chat/completions", json=body) as reply:
        reply.raise_for_status()
        async for line in reply.aiter_lines():
            if not line.startswith("data: {"):
                continue
            event = json.loads(line[6:])
            if event.get("usage"):
                made = event["usage"]["completion_tokens"]
            elif event["choices"] and event["choices"][0]["delta"].get("content"):
                times.append(time.perf_counter())
    return made


def gaps(times):
    return [b - a for a, b in zip(times, times[1:])]


def summary(values):
    values = sorted(values)
    return f"median {statistics.median(values) * 1e3:.2f} ms, p99 {values[int(len(values) * 0.99)] * 1e3:.2f} ms" if values else "no tokens"


async def main():
    async with httpx.AsyncClient(base_url=args.base, timeout=1200, limits=httpx.Limits(max_connections=200)) as client:
        await stream(client, "warm up", 8, [])
        for count in map(int, args.streams.split(",")):
            times = [[] for _ in range(count)]
            begun = time.perf_counter()
            made = await asyncio.gather(*(stream(client, words(20, i), args.tokens, times[i]) for i in range(count)))
            elapsed = time.perf_counter() - begun
            between = [gap for one in times for gap in gaps(one)]
            print(f"{count:3d} streams: {sum(made)} tokens in {elapsed:.2f} s = {sum(made) / elapsed:.1f} tokens/s; between tokens {summary(between)}", flush=True)
        if args.prefill:
            times, begun, ended = [], [], []

            async def long_prompt():
                await asyncio.sleep(1)
                begun.append(time.perf_counter())
                await stream(client, words(args.prefill, 99), 1, [])
                ended.append(time.perf_counter())

            await asyncio.gather(stream(client, words(20, 1), args.tokens * 4, times), long_prompt())
            alone = [b - a for a, b in zip(times, times[1:]) if b < begun[0]]
            beside = [b - a for a, b in zip(times, times[1:]) if a >= begun[0] and b <= ended[0]]
            print(f"    alone: {summary(alone)}; beside a prefill of {args.prefill} words ({ended[0] - begun[0]:.1f} s): {summary(beside)}")


asyncio.run(main())
