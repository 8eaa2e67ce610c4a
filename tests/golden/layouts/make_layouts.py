"""Runs transformers' two image processors (torchvision backend) over sizes and settings beyond the kit's, on pictures that a test
can draw itself, and writes layouts.json for tests/image/processor_layouts_test.cc.

    pip install torch torchvision "transformers>=5.24" pillow && python make_layouts.py

Each entry: size, settings, tile grids, tokens, slice grid, CRC-32 of the uint8 pixels in the order of pixel_values (recovered from it
exactly: mean and deviation are 0.5), and the placeholder text of the picture as the processor's own code makes it.
"""
import json
import zlib
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import torch
from PIL import Image
from torchvision.transforms.v2 import InterpolationMode
from torchvision.transforms.v2.functional import resize
from transformers import MiniCPMV4_6ImageProcessor, Qwen2VLImageProcessor
from transformers.models.minicpmv4_6.processing_minicpmv4_6 import MiniCPMV4_6Processor

torch.set_num_threads(1)


def drawing(w, h):
    y, x = np.mgrid[0:h, 0:w].astype(np.uint32)
    return np.stack([(x * 7 + y * 13) ^ (x * y >> 3), x * 3 + (y >> 1), (x ^ y) * 5], -1).astype(np.uint8)


def pixels_crc32(pv):
    u8 = torch.round(pv.double() * 127.5 + 127.5).clamp(0, 255).to(torch.uint8)
    assert torch.equal((u8.float() - 127.5) / 127.5, pv.float())
    return zlib.crc32(u8.contiguous().numpy().tobytes())


MINI = [  # (width, height, settings)
    *[(w, h, {"downsample_mode": m}) for m in ("16x", "4x") for w, h in
      [(1084, 820), (820, 1084), (2000, 200), (200, 2000), (448, 448), (1, 1), (3, 5000), (5000, 3), (640, 480), (480, 640), (1000, 1000),
       (449, 448), (1344, 1344), (1345, 700), (56, 56), (57, 1000), (30000, 2)]],
    (1084, 820, {"slice_mode": False}), (1084, 820, {"max_slice_nums": 4}), (1084, 820, {"max_slice_nums": 1}), (820, 1084, {"max_slice_nums": 16}),
    (1084, 820, {"resample": 2}), (100, 80, {"resample": 2}), (640, 480, {"use_image_id": False}), (640, 480, {"scale_resolution": 224}),
]
QWEN = [
    *[(w, h, {}) for w, h in [(1084, 820), (820, 1084), (2000, 200), (200, 2000), (448, 448), (1, 1), (640, 480), (200, 1), (1, 200), (33, 31)]],
    (640, 480, {"resample": 2}), (50, 40, {"resample": 2}), (640, 480, {"patch_size": 14}), (640, 480, {"merge_size": 1}),
    (640, 480, {"temporal_patch_size": 1}), (640, 480, {"size": {"shortest_edge": 1024, "longest_edge": 4096}}),
    (640, 480, {"size": {"shortest_edge": 1000000, "longest_edge": 2000000}}), (640, 480, {"min_pixels": 2048, "max_pixels": 10000}),
]
RESIZES = [(1, 1, 5, 3), (1, 9, 2, 9), (2, 3, 3, 2), (5, 4, 17, 4), (13, 7, 5, 11), (13, 7, 13, 30), (37, 21, 19, 8), (64, 48, 33, 49), (100, 3, 7, 3),
           (101, 67, 9, 5), (97, 150, 95, 151), (301, 200, 30, 21), (250, 33, 251, 3), (600, 5, 2, 2), (5, 600, 6, 3)]


def main():
    out = []
    tokens = dict(image_token="<|image_pad|>", image_start_token="<image>", image_end_token="</image>", slice_start_token="<slice>",
                  slice_end_token="</slice>", image_id_start_token="<image_id>", image_id_end_token="</image_id>")
    for w, h, settings in MINI:
        ip = MiniCPMV4_6ImageProcessor(**settings)
        r = ip(Image.fromarray(drawing(w, h)), return_tensors="pt")
        divisor = 4 if ip.downsample_mode == "4x" else 16
        me = SimpleNamespace(slice_mode=ip.slice_mode, **tokens)
        text = MiniCPMV4_6Processor.replace_image_token(me, {k: r[k] for k in ("grids", "num_patches_per_image", "target_sizes")}, 0, image_token_divisor=divisor)
        if ip.use_image_id:  # the third picture of a prompt
            text = MiniCPMV4_6Processor._prepend_local_ids(me, ["<|image_pad|>" * 3], ["", "", text], "<|image_pad|>")[2]
        out.append({"kind": "minicpmv", "width": w, "height": h, "settings": settings, "grid_rows_cols": r["grids"][0],
                    "tiles": r["target_sizes"].tolist(), "tokens": (r["target_sizes"].prod(-1) // divisor).tolist(),
                    "pixels_crc32": pixels_crc32(r["pixel_values"]), "text_crc32": zlib.crc32(text.encode())})
    for w, h, settings in QWEN:
        kw = dict(size={"shortest_edge": 65536, "longest_edge": 16777216}, patch_size=16, temporal_patch_size=2, merge_size=2,
                  image_mean=[0.5] * 3, image_std=[0.5] * 3) | settings
        r = Qwen2VLImageProcessor(**kw)(Image.fromarray(drawing(w, h)), return_tensors="pt")
        grid = r["image_grid_thw"][0].tolist()
        n = grid[1] * grid[2] // kw["merge_size"] ** 2
        out.append({"kind": "qwen", "width": w, "height": h, "settings": kw, "tiles": [grid[1:]], "tokens": [n],
                    "pixels_crc32": pixels_crc32(r["pixel_values"]), "text_crc32": zlib.crc32(("<|image_pad|>" * n).encode())})
    Path(__file__).with_name("layouts.json").write_text("[\n" + ",\n".join(json.dumps(e) for e in out) + "\n]\n")

    resizes()
    nearest_buckets()


def resizes():
    """resizes.json: width, height, new width, new height, filter and CRC-32 of [height, width, 3] for sizes that no processor asks for:
    rows that end inside a vector, one axis kept, one pixel, many taps."""
    out = []
    for name in ("bilinear", "bicubic"):
        for w, h, to_w, to_h in RESIZES:
            picture = torch.from_numpy(drawing(w, h)).permute(2, 0, 1)
            small = resize(picture, [to_h, to_w], InterpolationMode(name), antialias=True)
            out.append([w, h, to_w, to_h, name, zlib.crc32(small.permute(1, 2, 0).contiguous().numpy().tobytes())])
    Path(__file__).with_name("resizes.json").write_text("[\n" + ",\n".join(json.dumps(e) for e in out) + "\n]\n")


def nearest_buckets():
    """nearest_buckets.json: where get_vision_nearest_position_ids differs from floor(i * side / n), for every side and n of 1..140:
    {side: {n: [i, ...]}}; the operator's bucket is one less there (checked here) and equal everywhere else."""
    from transformers.vision_utils import get_vision_nearest_position_ids

    table = {}
    for side in range(1, 141):
        for n in range(1, 141):
            got = (get_vision_nearest_position_ids(torch.tensor([[n, 1]]), side) // side).tolist()
            less = [i for i in range(n) if got[i] != i * side // n]
            assert all(got[i] == i * side // n - 1 for i in less)
            if less:
                table.setdefault(side, {})[n] = less
    Path(__file__).with_name("nearest_buckets.json").write_text(json.dumps(table) + "\n")


if __name__ == "__main__":
    main()
