"""Answers over HTTP: are tool calls as well formed as in the plain text, and do answers under a schema validate?

    build/release/heirloom serve demo-vl --port 8080 &
    build/release/heirloom eval demo-vl EVAL/*.jsonl --json > answers.jsonl
    python bench/server_eval.py http://127.0.0.1:8080 --eval EVAL/*.jsonl --answers answers.jsonl

With --eval every item is asked over /v1/chat/completions, greedily; it is right when the expected call came out as exactly that call (name
and arguments as JSON values), or the key is in the text. --answers is what `heirloom eval --json` wrote; items that differ are named.
Without --eval only the schemas are tried: 10 of them, 5 seeds each, temperature 1, checked with jsonschema. Exits 1 when the answers over
HTTP are worse than the plain ones or one does not validate. Needs httpx and jsonschema (scripts/make_test_venv.sh).
"""
import argparse
import base64
import collections
import concurrent.futures
import json
import pathlib
import re
import sys

import httpx
import jsonschema

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("base")
parser.add_argument("--eval", nargs="*", default=[], type=pathlib.Path, metavar="FILE.jsonl")
parser.add_argument("--answers", type=pathlib.Path)
parser.add_argument("--parallel", type=int, default=4)
args = parser.parse_args()
client = httpx.Client(base_url=args.base, timeout=600)

TEXT = {"type": "string", "maxLength": 40}
SCHEMAS = [
    {"type": "object", "properties": {"color": {"enum": ["red", "green", "blue"]}, "count": {"type": "integer", "minimum": 0, "maximum": 9}},
     "required": ["color", "count"], "additionalProperties": False},
    {"type": "object", "properties": {"name": TEXT, "age": {"type": "integer", "minimum": 0, "maximum": 120}, "married": {"type": "boolean"}},
     "required": ["name", "age", "married"], "additionalProperties": False},
    {"type": "array", "items": {"type": "integer", "minimum": 1, "maximum": 99}, "minItems": 2, "maxItems": 5},
    {"type": "object", "properties": {"v": {"$ref": "#/$defs/e"}, "c": {"const": 'x"y'}}, "required": ["v", "c"], "additionalProperties": False,
     "$defs": {"e": {"enum": ['a"b', "two\nlines", None, 5, True, "\U0001f600"]}}},
    {"type": "object", "properties": {"id": {"type": "string", "pattern": "^[A-Z]{2}-[0-9]{3}$"}, "when": {"type": "string", "format": "date"}},
     "required": ["id", "when"], "additionalProperties": False},
    {"anyOf": [{"type": "object", "properties": {"ok": {"const": True}}, "required": ["ok"], "additionalProperties": False},
               {"type": "object", "properties": {"error": TEXT}, "required": ["error"], "additionalProperties": False}]},
    {"type": "object", "properties": {"items": {"type": "array", "minItems": 1, "maxItems": 3, "items": {
        "type": "object", "properties": {"what": TEXT, "price": {"type": "number", "minimum": 0, "maximum": 100}}, "required": ["what", "price"],
        "additionalProperties": False}}, "total": {"type": "integer", "minimum": 0, "maximum": 1000}}, "required": ["items", "total"],
     "additionalProperties": False},
    {"type": "object", "properties": {"value": {"type": ["string", "null"], "maxLength": 20}, "left": {"type": "integer", "minimum": 0, "maximum": 9}},
     "required": ["left"], "additionalProperties": False},
    {"type": "array", "prefixItems": [{"enum": ["x", "y"]}, {"type": "integer", "minimum": 0, "maximum": 9}], "items": False, "minItems": 2},
    {"type": "object", "properties": {"a": {"type": "array", "items": {"type": "boolean"}, "maxItems": 3}, "b": {"type": ["integer", "null"], "minimum": 0, "maximum": 99}},
     "required": ["a", "b"], "additionalProperties": False},
]


def ask(body):
    reply = client.post("/v1/chat/completions", json=body)
    reply.raise_for_status()
    return reply.json()["choices"][0]


def check_schema(number, seed):
    schema = SCHEMAS[number]
    choice = ask({"messages": [{"role": "user", "content": f"Give an example, number {seed}."}], "temperature": 1, "seed": seed, "max_tokens": 600,
                  "response_format": {"type": "json_schema", "json_schema": {"name": "example", "strict": True, "schema": schema}}})
    if choice["finish_reason"] != "stop":
        return f"schema {number}, seed {seed}: ended with {choice['finish_reason']}: {choice['message']['content'][:200]!r}"
    try:
        jsonschema.validate(json.loads(choice["message"]["content"]), schema, format_checker=jsonschema.FormatChecker())
    except (json.JSONDecodeError, jsonschema.ValidationError) as error:
        return f"schema {number}, seed {seed}: {choice['message']['content']!r}: {str(error).splitlines()[0]}"
    return None


def expected_call(text, tools):
    """The call as the model's own form writes it, typed by the tool's schema."""
    name = re.search(r"<function=([^>]+)>", text).group(1)
    schema = next(tool["function"] for tool in tools if tool["function"]["name"] == name)["parameters"]["properties"]
    arguments = {}
    for key, value in re.findall(r"<parameter=([^>]+)>\n(.*?)\n</parameter>", text, re.S):
        arguments[key] = value if schema.get(key, {}).get("type", "string") == "string" else json.loads(value)
    return name, arguments


def answer(file, item):
    messages = item["messages"]
    for message in messages:
        if isinstance(message.get("content"), list):
            for part in message["content"]:
                if part.get("type") == "image":
                    picture = base64.b64encode((file.parent / item["image"]).read_bytes()).decode()
                    part.clear()
                    part.update({"type": "image_url", "image_url": {"url": "data:image/png;base64," + picture}})
    body = {"messages": messages, "temperature": 0}
    if item.get("tools"):
        body["tools"] = item["tools"]
    if item.get("enable_thinking"):
        body["chat_template_kwargs"] = {"enable_thinking": True}
    message = ask(body)["message"]
    calls = [(call["function"]["name"], json.loads(call["function"]["arguments"])) for call in message.get("tool_calls") or []]
    key = item.get("key", item.get("expected", ""))
    if "<tool_call>" in key:
        return calls == [expected_call(key, item["tools"])], calls or message["content"]
    return key in (message.get("reasoning_content") or "") + (message["content"] or "") and not calls, calls or message["content"]


failed = False
with concurrent.futures.ThreadPoolExecutor(args.parallel) as pool:
    problems = [one for one in pool.map(lambda job: check_schema(*job), [(n, s) for n in range(len(SCHEMAS)) for s in range(5)]) if one]
    print(f"schemas: {len(SCHEMAS) * 5 - len(problems)} of {len(SCHEMAS) * 5} answers validate")
    for problem in problems:
        print("  ", problem)
    failed |= bool(problems)

    plain = {}
    if args.answers:
        for line in args.answers.read_text().splitlines():
            answered = json.loads(line)
            if "id" in answered:
                plain[answered["id"]] = answered["text"]
    items = [(file, json.loads(line)) for file in args.eval for line in file.read_text().splitlines() if line.strip()]
    totals = collections.defaultdict(lambda: [0, 0, 0])
    for (file, item), (right, got) in zip(items, pool.map(lambda job: answer(*job), items)):
        text = plain.get(item["id"])
        plain_right = text is not None and item.get("key", item.get("expected", "")) in text
        for name in (item["task"], "all"):
            totals[name][0] += 1
            totals[name][1] += right
            totals[name][2] += plain_right
        if text is not None and right != plain_right:
            print(f"   {item['id']}: over HTTP {'right' if right else 'wrong'}: {got!r}; plain: {text!r}")
    for name, (count, right, plain_right) in sorted(totals.items()):
        print(f"{name:16} {right:4d}/{count:<4d} over HTTP" + (f", {plain_right}/{count} plain" if plain else ""))
        failed |= bool(plain) and right < plain_right
sys.exit(1 if failed else 0)
