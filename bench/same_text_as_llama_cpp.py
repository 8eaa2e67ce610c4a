#!/usr/bin/env python3
"""Greedy answers of a GGUF that heirloom wrote, in llama.cpp and here: the same text?

  same_text_as_llama_cpp.py --heirloom build/release/heirloom --llama WORK/bin/llama-completion --model FOLDER ITEMS.jsonl...
      [--type q8_0] [--prune 0.75] [--limit 40]

FOLDER is a Hugging Face folder; its language model is written with `quantize --text-only` (with --prune: `prune --text-only`) and asked the text-only items (rendered
with the folder's chat template by Python's jinja2). Needs: pip install jinja2.
"""
import argparse
import json
import os
import subprocess
import tempfile

from jinja2.sandbox import ImmutableSandboxedEnvironment


def render(template, item):
    environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"])
    environment.filters["tojson"] = lambda value, indent=None: json.dumps(value, ensure_ascii=False, indent=indent)
    return environment.from_string(template).render(messages=item["messages"], tools=item.get("tools"), add_generation_prompt=True,
                                                    enable_thinking=item.get("enable_thinking", False))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--heirloom", required=True)
    parser.add_argument("--llama", required=True)
    parser.add_argument("--model", required=True)
    parser.add_argument("--type", default="q8_0")
    parser.add_argument("--prune", type=float, help="share of the experts to keep")
    parser.add_argument("--limit", type=int, default=40)
    parser.add_argument("items", nargs="+")
    args = parser.parse_args()

    template = open(os.path.join(args.model, "chat_template.jinja")).read()
    items = [json.loads(line) for path in args.items for line in open(path)]
    items = [item for item in items if "image" not in item and item.get("prompt_tokens", 0) < 2000]
    items = items[:: max(1, len(items) // args.limit)]
    same = 0
    with tempfile.TemporaryDirectory() as folder:
        gguf = os.path.join(folder, "model.gguf")
        command = ["prune", "--keep", str(args.prune)] if args.prune else ["quantize"]
        subprocess.run([args.heirloom, *command, args.model, gguf, "--type", args.type, "--text-only", "--log-level", "error"], check=True,
                       stdout=subprocess.DEVNULL)
        for item in items:
            prompt = render(template, item)
            ours = subprocess.run([args.heirloom, "run", gguf, "--raw", "-p", prompt, "-n", "96", "--temperature", "0", "--log-level", "error"],
                                  check=True, capture_output=True, text=True).stdout
            # -f would drop the prompt's last newline. llama-completion may lose the end of its output when it exits (its
            # printing thread), so an answer without its end mark is asked for again.
            for _ in range(8):
                theirs = subprocess.run([args.llama, "-m", gguf, "-p", prompt, "--no-escape", "-n", "96", "--temp", "0", "-no-cnv",
                                         "--no-display-prompt", "--no-warmup", "-t", "2"], check=True, capture_output=True, text=True).stdout
                if "[end of text]" in theirs:
                    break
            theirs = theirs.replace("[end of text]", "").strip()
            if theirs == ours.strip():
                same += 1
            else:
                print(f"{item.get('id')}: ours {ours.strip()!r}, llama.cpp {theirs!r}")
    print(f"{args.type}: {same} of {len(items)} answers are the same text")


if __name__ == "__main__":
    main()
