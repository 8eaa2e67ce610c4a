"""Mixed load against a running server: python server_soak.py BASE_URL [--minutes 30] [--clients 64] [--pid PID] [--images]

Chats, streams, schemas, tools, pictures, clients that leave, clients that read slowly, hostile bodies. Every few seconds a greedy question,
also about a picture, must get the answer that it got at the start. Ends with a summary and exits 1 when an answer was wrong, a slot stuck or memory grew.
Start the server with --cache-ram 64MiB: a prefix cache that is still filling looks like memory that grows.
"""
import argparse
import asyncio
import json
import pathlib
import random
import re
import struct
import sys
import time
import zlib
import base64

import httpx

parser = argparse.ArgumentParser()
parser.add_argument("base")
parser.add_argument("--minutes", type=float, default=30)
parser.add_argument("--clients", type=int, default=64)
parser.add_argument("--pid", type=int, help="server's process, for its memory")
parser.add_argument("--images", action="store_true")
parser.add_argument("--growth", type=float, default=1.10, help="allowed growth of memory from the first fifth of the run to its end")
args = parser.parse_args()

SCHEMA = {"type": "object", "properties": {"color": {"enum": ["red", "green", "blue"]}, "n": {"type": "integer", "minimum": 0, "maximum": 99}},
          "required": ["color", "n"], "additionalProperties": False}
TOOL = {"type": "function", "function": {"name": "add", "parameters": {"type": "object", "properties": {"a": {"type": "number"}, "b": {"type": "number"}},
                                                                         "required": ["a", "b"]}}}
PROBE = {"messages": [{"role": "user", "content": "What is the capital of France?"}], "temperature": 0, "max_tokens": 16}
counts = {}
wrong = []
rng = random.Random(1)


def png(side):
    color = bytes(rng.randrange(256) for _ in range(3))
    rows = b"".join(b"\0" + color * side for _ in range(side))
    chunk = lambda kind, data: struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
    raw = b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", struct.pack(">IIBBBBB", side, side, 8, 2, 0, 0, 0)) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")
    return "data:image/png;base64," + base64.b64encode(raw).decode()


def prompt():
    return "Tell me about " + " ".join(rng.choice(["stones", "rivers", "birds", "ships", "clouds", "trees"]) for _ in range(rng.randrange(1, 200)))


async def chat(client, stream=False, leave=False, slow=False, **extra):
    body = {"messages": [{"role": "user", "content": prompt()}], "max_tokens": rng.randrange(1, 64), "stream": stream, **extra}
    if not stream:
        if leave:
            try:
                await asyncio.wait_for(client.post("/v1/chat/completions", json=body), rng.random() * 0.5)
            except asyncio.TimeoutError:
                pass
            return
        reply = await client.post("/v1/chat/completions", json=body)
        if reply.status_code == 503:
            counts["busy"] = counts.get("busy", 0) + 1
            return
        reply.raise_for_status()
        return reply.json()
    async with client.stream("POST", "/v1/chat/completions", json=body) as reply:
        if reply.status_code == 503:
            counts["busy"] = counts.get("busy", 0) + 1
            return
        reply.raise_for_status()
        last = ""
        async for line in reply.aiter_lines():
            last = line or last
            if leave and rng.random() < 0.1:
                return
            if slow:
                await asyncio.sleep(0.05)
        if last != "data: [DONE]":
            wrong.append("a stream ended without [DONE]: " + last[:200])


async def schema(client):
    done = await chat(client, temperature=1, seed=rng.randrange(1 << 30), response_format={"type": "json_schema", "json_schema": {"name": "s", "schema": SCHEMA}}, max_tokens=100)
    if done and done["choices"][0]["finish_reason"] == "stop":
        value = json.loads(done["choices"][0]["message"]["content"])
        if value["color"] not in ("red", "green", "blue") or not 0 <= value["n"] <= 99:
            wrong.append(f"outside the schema: {value}")


async def tool(client):
    done = await chat(client, tools=[TOOL], tool_choice="required", max_tokens=200)
    if done and done["choices"][0]["finish_reason"] == "tool_calls":
        json.loads(done["choices"][0]["message"]["tool_calls"][0]["function"]["arguments"])


async def picture(client):
    body = {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": png(rng.choice([32, 64, 224, 500]))}},
                                                       {"type": "text", "text": "What color is this?"}]}], "max_tokens": 16}
    reply = await client.post("/v1/chat/completions", json=body)
    if reply.status_code not in (200, 503):
        wrong.append(f"picture: {reply.status_code} {reply.text[:200]}")


async def hostile(client):
    body = rng.choice([b"[" * 100000, b'{"messages": [{"role": "user", "content": "\xff"}]}', b"", b'{"messages": NaN}', b'{"messages": [{"role": "x"}]}'])
    reply = await client.post("/v1/chat/completions", content=body, headers={"Content-Type": "application/json"})
    if reply.status_code != 400:
        wrong.append(f"hostile body: {reply.status_code}")


async def worker(until):
    jobs = [("chat", chat), ("stream", lambda c: chat(c, stream=True)), ("leave", lambda c: chat(c, leave=True)), ("leave stream", lambda c: chat(c, stream=True, leave=True)),
            ("slow", lambda c: chat(c, stream=True, slow=True)), ("schema", schema), ("tool", tool), ("hostile", hostile)]
    if args.images:
        jobs.append(("picture", picture))
    async with httpx.AsyncClient(base_url=args.base, timeout=600) as client:
        while time.monotonic() < until:
            name, job = rng.choice(jobs)
            try:
                await job(client)
                counts[name] = counts.get(name, 0) + 1
            except Exception as error:  # every failure is a finding
                wrong.append(f"{name}: {type(error).__name__} {error}")


def rss():
    if not args.pid:
        return 0
    return int(re.search(r"VmRSS:\s+(\d+)", pathlib.Path(f"/proc/{args.pid}/status").read_text()).group(1)) / 1024


async def probe(client, body):
    for _ in range(20):
        reply = await client.post("/v1/chat/completions", json=body)
        if reply.status_code != 503:
            return reply.json()["choices"][0]["message"]["content"]
        await asyncio.sleep(1)
    return None


def probes():
    bodies = [PROBE, {**PROBE, "messages": [{"role": "user", "content": "Add 17 and 25."}]}]
    if args.images:
        picture = base64.b64encode((pathlib.Path(__file__).parent.parent / "examples" / "shapes.png").read_bytes()).decode()
        bodies.append({**PROBE, "max_tokens": 40, "messages": [{"role": "user", "content": [
            {"type": "image_url", "image_url": {"url": "data:image/png;base64," + picture}}, {"type": "text", "text": "Describe the picture."}]}]})
    return bodies


async def main():
    until = time.monotonic() + args.minutes * 60
    async with httpx.AsyncClient(base_url=args.base, timeout=600) as client:
        bodies = probes()
        expected = [await probe(client, body) for body in bodies]
        print("answers that must not change:", expected, flush=True)
        workers = [asyncio.create_task(worker(until)) for _ in range(args.clients)]
        memory = []
        asked = 0
        while time.monotonic() < until:
            await asyncio.sleep(min(10, max(1, args.minutes * 6)))
            memory.append(rss())
            which = asked % len(bodies)
            answer = await probe(client, bodies[which])
            asked += 1
            if answer != expected[which]:
                wrong.append(f"probe: {answer!r} instead of {expected[which]!r}")
            print(f"{memory[-1]:.0f} MiB, {sum(counts.values())} requests, {len(wrong)} wrong", flush=True)
        await asyncio.gather(*workers)
        await asyncio.sleep(2)
        health = (await client.get("/health")).json()
        if health["slots_busy"] or health["queued"]:
            wrong.append(f"stuck: {health}")
    print(json.dumps(counts), f"{asked} answers sampled")
    if memory and memory[0]:
        start = max(memory[:max(1, len(memory) // 5)])
        print(f"memory {start:.0f} -> {memory[-1]:.0f} MiB")
        if memory[-1] > start * args.growth:
            wrong.append("memory grew")
    for line in wrong[:20]:
        print("WRONG", line)
    return 1 if wrong else 0


sys.exit(asyncio.run(main()))
