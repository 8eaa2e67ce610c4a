#!/usr/bin/env python3
"""Writes saliency.json beside this file: REAP's scores of a tiny model's experts, computed by the reference implementation's
own forward pass (transformers >= 5.24, float32) with a hook on its experts.

    python3 tests/golden/prune/make_saliency.py GOLDEN_KIT

For every layer and expert: the mean over the tokens routed to it of router weight x L2 norm of the expert's output, and the
number of those tokens. "f32" is models/moe_a as it is; "f16" has the matrices rounded that gguf/moe_a-f16.gguf keeps in f16;
"picture" is a prompt with a picture, in float32.
"""
import json
import os
import sys

import torch
from PIL import Image
from transformers import AutoModelForImageTextToText, AutoProcessor

KIT = sys.argv[1]
FOLDER = os.path.join(KIT, "models", "moe_a")
PICTURE = "one.png"
PROMPT = "<|im_start|>user\n<|vision_start|><|image_pad|><|vision_end|>What is this?<|im_end|>\n"


class Collector:
    def __init__(self, model):
        self.layers = [layer.mlp.experts for layer in model.model.language_model.layers]
        self.sums = [[0.0] * e.num_experts for e in self.layers]
        self.tokens = [[0] * e.num_experts for e in self.layers]
        for index, experts in enumerate(self.layers):
            experts.register_forward_pre_hook(lambda module, args, i=index: self.add(i, module, *args))

    def add(self, index, module, hidden, chosen, weights):
        for token in range(hidden.shape[0]):
            for expert, weight in zip(chosen[token].tolist(), weights[token].tolist()):
                gate, up = (module.gate_up_proj[expert] @ hidden[token]).chunk(2)
                out = module.down_proj[expert] @ (torch.nn.functional.silu(gate) * up)
                self.sums[index][expert] += weight * out.double().norm().item()
                self.tokens[index][expert] += 1

    def result(self):
        scores = [[s / n if n else 0.0 for s, n in zip(*pair)] for pair in zip(self.sums, self.tokens)]
        return {"score": scores, "tokens": self.tokens}


def load():
    return AutoModelForImageTextToText.from_pretrained(FOLDER, dtype=torch.float32, attn_implementation="eager").eval()


@torch.no_grad()
def run(model, inputs):
    collector = Collector(model)
    for each in inputs:
        model(**each, use_cache=False)
    return collector.result()


def main():
    random = torch.Generator().manual_seed(11)
    vocabulary = load().config.text_config.vocab_size
    sequences = [torch.randint(0, 370, (n,), generator=random).tolist() for n in (17, 64, 130)]
    assert vocabulary > 370
    texts = [{"input_ids": torch.tensor([ids])} for ids in sequences]
    f16 = load()
    for name, value in f16.named_parameters():
        # What a GGUF keeps in f16: matrices, but not routers, norms, convolutions.
        if value.dim() >= 2 and not any(part in name for part in ("mlp.gate.", "shared_expert_gate", "conv1d", "norm")):
            value.data = value.data.half().float()
    picture = AutoProcessor.from_pretrained(FOLDER)(text=[PROMPT], images=[Image.open(os.path.join(KIT, "images", PICTURE)).convert("RGB")],
                                                    return_tensors="pt", return_mm_token_type_ids=True)
    golden = {"sequences": sequences, "f32": run(load(), texts), "f16": run(f16, texts),
              "picture": {"file": PICTURE, "prompt": PROMPT, "input_tokens": picture["input_ids"].shape[1], **run(load(), [dict(picture)])}}
    with open(os.path.join(os.path.dirname(os.path.abspath(__file__)), "saliency.json"), "w") as out:
        json.dump(golden, out)


if __name__ == "__main__":
    main()
