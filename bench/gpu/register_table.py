#!/usr/bin/env python3
"""Registers, static shared memory and spills of every GPU kernel, as a Markdown table.

    register_table.py PTXAS build/release/ptx

PTXAS is any ptxas from CUDA 11.8 on, such as the one in PyPI's nvidia-cuda-nvcc-cu11. The oldest target that 11.8 knows is sm_35, so
sm_20 kernels are assembled for that: once as they are, once with the 63 registers that compute capability 2.0 has (without
.maxntid, which would override the limit). Kernels of newer tiers are assembled for their tier.
"""
import pathlib
import re
import subprocess
import sys
import tempfile


def assemble(ptxas, text, arch, registers=None):
    with tempfile.NamedTemporaryFile("w", suffix=".ptx") as file:
        file.write(text)
        file.flush()
        command = [ptxas, f"-arch={arch}", "-v", file.name, "-o", "/dev/null"]
        if registers:
            command.insert(1, f"--maxrregcount={registers}")
        done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"{file.name}: {done.stderr}")
    found = {}
    for part in re.split(r"Compiling entry function '", done.stderr)[1:]:
        number = lambda pattern: int(re.search(pattern, part).group(1)) if re.search(pattern, part) else 0
        found[part.split("'")[0]] = (number(r"Used (\d+) registers"), number(r"(\d+) bytes smem"),
                                     number(r"(\d+) bytes spill stores"), number(r"(\d+) bytes spill loads"))
    return found


def main():
    ptxas, folder = sys.argv[1], pathlib.Path(sys.argv[2])
    print("| kernel | tier | registers | shared bytes | spill st/ld | with 63: registers | spill st/ld |")
    print("|---|---|---|---|---|---|---|")
    for path in sorted(folder.glob("*.ptx")):
        text = path.read_text()
        tier = int(re.search(r"\.sm(\d+)\.ptx$", path.name).group(1)) if ".sm" in path.name else 20
        if tier == 90:  # as cmake/embed_ptx.cmake does
            text = re.sub(r"\.version [0-9.]+", ".version 7.8", re.sub(r"\.target sm_[0-9]+", ".target sm_90", text))
        free = assemble(ptxas, text, f"sm_{max(tier, 35)}")
        limited = assemble(ptxas, re.sub(r"\.maxntid[^\n]*", "", text), "sm_35", 63) if tier == 20 else {}
        for name, (registers, shared, stores, loads) in free.items():
            row = f"| {name} | {tier} | {registers} | {shared} | {stores} / {loads} |"
            if name in limited:
                r, _, s, l = limited[name]
                row += f" {r} | {s} / {l} |"
            else:
                row += " | |"
            print(row)


if __name__ == "__main__":
    main()
