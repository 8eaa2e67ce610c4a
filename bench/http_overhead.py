#!/usr/bin/env python3
"""Time between tokens as a client sees it, to hold against the decode speed of `heirloom bench`: http_overhead.py URL ITEMS.jsonl... [--limit 300]

Asks the questions of an eval file one after the other, streamed, greedy; every event's arrival is taken from the socket, and the gaps between the
tokens of an answer are put together. A gap holds the engine's step and all of HTTP; take a small model, whose steps are short, and a server with
--cache-ram 0, which takes no snapshots.
"""
import argparse
import json
import socket
import time
import urllib.parse


def arrivals(address, body):
    head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: {address.netloc}\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    times = []
    with socket.create_connection((address.hostname, address.port)) as connection:
        connection.sendall(head.encode() + body)
        while data := connection.recv(1 << 16):
            times += [time.perf_counter()] * data.count(b'"content":"')
    return times


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("url")
    parser.add_argument("items", nargs="+")
    parser.add_argument("--limit", type=int, default=300)
    args = parser.parse_args()
    items = [json.loads(line) for path in args.items for line in open(path)]
    items = [item for item in items if "image" not in item and item["prompt_tokens"] < 300 and len(item["hf"]["ids"]) >= 8]
    items = items[:: max(1, -(-len(items) // args.limit))]
    gaps = []
    for item in items:
        body = json.dumps({"messages": item["messages"], "max_tokens": 200, "temperature": 0, "stream": True}).encode()
        times = arrivals(urllib.parse.urlsplit(args.url), body)[1:]  # the first event comes before the prompt has been read
        gaps += [(b - a) * 1000 for a, b in zip(times, times[1:])]
    gaps.sort()
    shown = ", ".join(f"p{share:g} {gaps[int(len(gaps) * share / 100)]:.3f}" for share in (50, 90, 99, 99.9))
    print(f"{len(items)} answers, {len(gaps)} gaps between tokens: {shown} ms")


if __name__ == "__main__":
    main()
