"""Throughput and latency of running servers: python server_load.py URL [OTHER_URL] [--streams 1,8] [--tokens 128] [--rounds 5] [--prefill 4000]

For each number of concurrent streams: the total tokens/s, the median and p99 time between tokens. Then the time between tokens of a running
stream while a long prompt prefills beside it. Rounds take turns between the servers, so that both see the same machine; medians with
minimum and maximum are printed, and the ratio to the other server. A token without text (half a character) is no event, and counts into the next
gap. Works with any OpenAI-compatible server (ignore_eos keeps lengths equal).
"""
import argparse
import asyncio
import collections
import json
import random
import re
import statistics
import sys
import time
import urllib.parse

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("base", nargs="+")
parser.add_argument("--streams", default="1,8")
parser.add_argument("--tokens", type=int, default=128)
parser.add_argument("--rounds", type=int, default=5)
parser.add_argument("--prefill", type=int, default=0, help="words of the long prompt; 0 leaves the test out")
parser.add_argument("--prefill-tokens", type=int, default=0, help="tokens of the stream beside it (default: four times --tokens)")
args = parser.parse_args()
seeds = iter(range(1, 1 << 30))
EVENT = b"data: {"


def words(count, seed):
    rng = random.Random(seed)
    return " ".join(rng.choice("stone river bird ship cloud tree wind house light road".split()) for _ in range(count))


class Answer(asyncio.BufferedProtocol):
    """One answer; the time of every event goes to `times`. Bytes are counted, not parsed, and the socket stays registered: the client shares the
    server's cores, and what it takes of them the server lacks."""

    def __init__(self, request, times):
        self.request, self.times = request, times
        self.buffer = bytearray(1 << 16)
        self.view = memoryview(self.buffer)
        self.begin = self.tail = b""
        self.ended = asyncio.get_running_loop().create_future()

    def connection_made(self, transport):
        transport.write(self.request)

    def get_buffer(self, sizehint):
        return self.buffer

    def buffer_updated(self, size):
        now = time.perf_counter()
        data = bytes(self.view[:size])
        self.begin = self.begin or data[:64]
        text = self.tail[-len(EVENT) + 1:] + data  # an event's beginning may be cut by the end of a read
        self.times.extend([now] * text.count(EVENT))
        self.tail = (self.tail + data)[-4096:]

    def connection_lost(self, error):
        self.ended.set_result(error)


async def stream(client, prompt, tokens, times):
    body = json.dumps({"messages": [{"role": "user", "content": prompt}], "max_tokens": tokens, "temperature": 0, "ignore_eos": True, "stream": True,
                       "stream_options": {"include_usage": True}}).encode()
    head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: {client.netloc}\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    _, answer = await asyncio.get_running_loop().create_connection(lambda: Answer(head.encode() + body, times), client.hostname, client.port)
    error = await answer.ended
    if error or b" 200 " not in answer.begin:
        sys.exit(f"{client.geturl()}: {answer.begin!r} {error or ''}")
    return int(re.findall(rb'"completion_tokens": ?(\d+)', answer.tail)[-1])


def gaps(times):
    """Between tokens; the first event comes before the prompt has been read."""
    times = times[1:]
    return [b - a for a, b in zip(times, times[1:])]


def p99(values):
    return sorted(values)[int(len(values) * 0.99)] if values else float("nan")


def spread(values, form):
    values = [value for value in values if value == value]
    return f"{statistics.median(values):{form}} ({min(values):{form}}-{max(values):{form}})" if values else "-"


async def measure(client, count, figures):
    times = [[] for _ in range(count)]
    prompts = [words(20, next(seeds)) for _ in range(count)]
    begun = time.perf_counter()
    made = await asyncio.gather(*(stream(client, prompt, args.tokens, one) for prompt, one in zip(prompts, times)))
    elapsed = time.perf_counter() - begun
    between = [gap for one in times for gap in gaps(one)]
    figures["tokens/s"].append(sum(made) / elapsed)
    figures["median ms"].append(statistics.median(between) * 1e3 if between else float("nan"))
    figures["p99 ms"].append(p99(between) * 1e3)


async def beside_prefill(client, figures):
    times, begun, ended = [], [], []

    async def long_prompt():
        while len(times) < 32:
            await asyncio.sleep(0.01)
        begun.append(time.perf_counter())
        await stream(client, words(args.prefill, next(seeds)), 1, [])
        ended.append(time.perf_counter())

    await asyncio.gather(stream(client, words(20, next(seeds)), args.prefill_tokens or args.tokens * 4, times), long_prompt())
    alone = [b - a for a, b in zip(times, times[1:]) if b < begun[0] or a > ended[0]]
    beside = [b - a for a, b in zip(times, times[1:]) if a >= begun[0] and b <= ended[0]]
    if times[-1] < ended[0]:
        print("    the stream ended before the prefill did: raise --prefill-tokens", flush=True)
    figures["alone, median ms"].append(statistics.median(alone) * 1e3)
    figures["beside, median ms"].append(statistics.median(beside) * 1e3)
    figures["beside/alone"].append(statistics.median(beside) / statistics.median(alone))
    figures["beside, p99 ms"].append(p99(beside) * 1e3)
    figures["prefill s"].append(ended[0] - begun[0])


async def main():
    counts = [int(count) for count in args.streams.split(",")]
    results = collections.defaultdict(lambda: collections.defaultdict(list))
    clients = [urllib.parse.urlsplit(base) for base in args.base]
    for client in clients:
        await stream(client, "warm up", 8, [])
    for _ in range(args.rounds):
        for count in counts:
            for i, client in enumerate(clients):
                await measure(client, count, results[i, count])
        if args.prefill:
            for i, client in enumerate(clients):
                await beside_prefill(client, results[i, "prefill"])
    for i, base in enumerate(args.base):
        print(base)
        single = results[i, counts[0]]["tokens/s"]
        for count in counts:
            figures = results[i, count]
            line = f"  {count:3d} streams: {spread(figures['tokens/s'], '.1f')} tokens/s"
            line += f"; between tokens median {spread(figures['median ms'], '.2f')} ms, p99 {spread(figures['p99 ms'], '.2f')} ms"
            if count != counts[0]:
                line += f"; x{spread([a / b for a, b in zip(figures['tokens/s'], single)], '.2f')} of {counts[0]}"
            if i > 0:
                line += f"; the first server has x{spread([a / b for a, b in zip(results[0, count]['tokens/s'], figures['tokens/s'])], '.2f')}"
            print(line)
        for name, values in results[i, "prefill"].items():
            print(f"  prefill of {args.prefill} words: {name} {spread(values, '.2f')}")


asyncio.run(main())
