#!/usr/bin/env python3
"""How far the reference itself moves when the operands of its products are rounded to bfloat16: the yardsticks of `verify --gemm bf16`.

    python make_rounding.py --kit DIR [--realisations 32] [--models dense_a,...]      writes NAME.json beside this script

DIR is the golden kit (models/, dumps/, spec.json and make_golden.py, whose loader and taps are used). Needs what the kit's README names.

The transformers implementation is run in float32 on the inputs of every dump. In a prompt both operands of every matrix product (Linear,
patch convolution, attention's two products and, where keys are 128 wide, the chunked delta rule's) are rounded to bfloat16 (8 bits of
significand, round to nearest even); sums stay float32. Left as they are: the router and the shared expert's gate, the rotary angles,
narrower delta rules, tokens one at a time, and the head where a dump has the last row's logits only: there the engine keeps FP32 too.

The first realisation rounds x to bf16(x). Each further one rounds to bf16(s x) / s with a random s in [1, 2) for every operand: the same
precision on another grid, so a sample of what rounding to 8 bits may do. NAME.json holds for every stage the largest max_abs and
rel_l2 (as `verify` defines them; for integers the share of entries that differ) over all realisations.
"""
import argparse
import json
import math
import sys
from pathlib import Path

import torch
import torch.nn.functional as F
from torch.overrides import TorchFunctionMode

PRODUCTS = (F.linear, F.conv2d, F.conv3d, torch.matmul, torch.Tensor.matmul, torch.Tensor.__matmul__)


class Rounding(TorchFunctionMode):
    """Rounds the operands of products while `on` and not inside a module or function that keeps float32."""

    def __init__(self):
        super().__init__()
        self.on, self.kept, self.random = False, 0, None

    def rounded(self, x):
        scale = 1.0 if self.random is None else float(1 + torch.rand((), generator=self.random))
        return (x * scale).to(torch.bfloat16).to(torch.float32) / scale

    def __torch_function__(self, function, types, args=(), kwargs=None):
        if self.on and not self.kept and function in PRODUCTS:
            args = (self.rounded(args[0]), self.rounded(args[1]), *args[2:])
        return function(*args, **(kwargs or {}))

    def keep(self, function, when=lambda: True):
        """`function` with its products left in float32."""

        def kept(*args, **kwargs):
            skip = bool(when())
            self.kept += skip
            try:
                return function(*args, **kwargs)
            finally:
                self.kept -= skip

        return kept


def deviation(got, reference):
    if reference.is_floating_point():
        difference = (got.float() - reference.float()).double()
        return float(difference.abs().max()), float(difference.norm() / max(float(reference.double().norm()), 1e-30))
    different = got.long() - reference.long()
    return float(different.abs().max()), float((different != 0).double().mean())


def up(x):
    """Three digits, never less than x."""
    if x == 0:
        return 0.0
    unit = 10.0 ** (math.floor(math.log10(x)) - 2)
    return float(f"{math.ceil(x / unit) * unit:.3g}")


class Reference:
    def __init__(self, golden, kit, name, arch, rounding):
        self.golden, self.arch, self.rounding = golden, arch, rounding
        self.model = golden.load_model(kit / "models" / name, arch)
        self.lm = golden.lm_of(self.model, arch)
        self.gdn = [i for i, t in enumerate(self.lm.config.layer_types) if t == "linear_attention"]
        self.all_rows = False
        for module in self.model.modules():
            if any(part in type(module).__name__ for part in ("RotaryEmbedding", "TopKRouter")):
                module.forward = rounding.keep(module.forward)
        for layer in self.lm.layers:
            if hasattr(layer.mlp, "shared_expert_gate"):
                layer.mlp.shared_expert_gate.forward = rounding.keep(layer.mlp.shared_expert_gate.forward)
        self.model.lm_head.forward = rounding.keep(self.model.lm_head.forward, lambda: not self.all_rows)
        if self.lm.config.linear_key_head_dim != 128:
            module = sys.modules[type(self.lm).__module__]
            module.torch_chunk_gated_delta_rule = rounding.keep(module.torch_chunk_gated_delta_rule)

    def prompt(self, inputs, **options):
        if hasattr(self.model.model, "rope_deltas"):
            self.model.model.rope_deltas = None
        self.rounding.on = True
        try:
            return self.model(**inputs, **options)
        finally:
            self.rounding.on = False

    def states(self, cache, layers, infix):
        return {key.replace(".", infix, 1): value for key, value in self.golden.cache_states(cache, layers).items()}

    def decoded(self, inputs, tokens, extra):
        """The prompt, then the recorded tokens one at a time."""
        cache, ends = self.golden.new_cache(self.model, self.arch), {self.gdn[0], self.gdn[-1]}
        out = self.prompt(inputs, cache=cache, use_cache=True, **extra)
        got = {"prefill_logits_last": out.logits[0, -1:].clone()}
        got |= {"after_prefill." + key: value for key, value in self.states(cache, ends, ".").items()}
        rows = [self.model(input_ids=torch.tensor([[t]]), cache=cache, use_cache=True, **extra).logits[0, -1].clone() for t in tokens.tolist()]
        got["decode_logits"] = torch.stack(rows)
        best = torch.cat([got["prefill_logits_last"], got["decode_logits"]]).topk(2, dim=-1).values
        got["margin"] = best[:, 0] - best[:, 1]
        return got | {"after_decode." + key: value for key, value in self.states(cache, ends, ".").items()}

    def stages(self, dump, path):
        """Every stage of `dump` that products reach, by its name."""
        inputs, extra = {"input_ids": dump["input_ids"].long()[None]}, {}
        pictures = "vision.pixel_u8" in dump
        if pictures:
            inputs["pixel_values"] = (dump["vision.pixel_u8"].float() - 127.5) / 127.5
            inputs |= {key: dump[key].long() for key in ("image_grid_thw", "target_sizes") if key in dump}
            if "mm_token_type_ids" in dump:
                inputs["mm_token_type_ids"] = dump["mm_token_type_ids"].long()[None]
            if self.arch == "minicpmv":
                extra["downsample_mode"] = json.loads(path.with_suffix(".json").read_text())["mode"]
        self.all_rows = "lm.logits" in dump
        prefix = "decode." if "decode.decode_tokens" in dump else ""
        got = {}
        with self.rounding:
            if prefix + "decode_tokens" in dump:
                got = {prefix + key: value for key, value in self.decoded(inputs, dump[prefix + "decode_tokens"], extra).items()}
            if not path.name.startswith("decode_"):
                cache = None if pictures else self.golden.new_cache(self.model, self.arch)
                with self.golden.Tap(self.model, self.arch, gdn_layer=self.gdn[0], moe_layer=1 if self.arch == "moe" else None) as tap:
                    self.prompt(inputs, **({"use_cache": False} if pictures else {"use_cache": True, "cache": cache}), **extra)
                got |= tap.out
                if cache is not None:
                    got |= {"lm." + key: value for key, value in self.states(cache, self.gdn[:1], ".gdn.").items() if "conv" in key}
        return {key: value for key, value in got.items() if key in dump}


def main():
    here = Path(__file__).resolve().parent
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kit", type=Path, required=True)
    parser.add_argument("--realisations", type=int, default=32)
    parser.add_argument("--models", default="")
    parser.add_argument("--every", type=Path, help="also write every realisation's figures to this file, for a study of their spread")
    arguments = parser.parse_args()
    sys.path.insert(0, str(arguments.kit))
    import make_golden as golden

    torch.set_num_threads(1)
    torch.set_grad_enabled(False)
    every = {}
    for spec in json.loads((arguments.kit / "spec.json").read_text())["models"]:
        name, chosen = spec["name"], [n for n in arguments.models.split(",") if n]
        if chosen and name not in chosen:
            continue
        rounding, result = Rounding(), {}
        reference = Reference(golden, arguments.kit, name, spec["arch"], rounding)
        for path in sorted((arguments.kit / "dumps" / name).glob("*.safetensors")):
            if path.name.startswith("mtp"):
                continue
            dump, worst = golden.load_st(path), {}
            for k in range(arguments.realisations):
                rounding.random = None if k == 0 else torch.Generator().manual_seed(k)
                for key, value in reference.stages(dump, path).items():
                    worst.setdefault(key, []).append(deviation(value, dump[key]))
            every |= {f"{name}/{path.stem}": worst}
            largest = {key: [up(max(column)) for column in zip(*rows)] for key, rows in sorted(worst.items())}
            result[path.stem] = {key: value for key, value in largest.items() if any(value)}  # positions and the like do not move
        lines = [f'  "{stem}": {{\n' + ",\n".join(f'    "{key}": {json.dumps(value)}' for key, value in stages.items()) + "\n  }" for stem, stages in result.items()]
        (here / f"{name}.json").write_text("{\n" + ",\n".join(lines) + "\n}\n")
        print(name, sum(len(stages) for stages in result.values()), "stages", flush=True)
    if arguments.every:
        arguments.every.write_text(json.dumps(every))


if __name__ == "__main__":
    main()
