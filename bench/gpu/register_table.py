#!/usr/bin/env python3
"""Registers, static shared memory and spills of every GPU kernel, as a Markdown table.

    register_table.py PTXAS build/release/ptx [--newer PTXAS] [--tier 90]

PTXAS is the one of CUDA 11.8, such as in PyPI's nvidia-cuda-nvcc-cu11. The oldest target that it knows is sm_35, so
sm_20 kernels are assembled for that: once as they are, once with the 63 registers that compute capability 2.0 has (without
.maxntid, which would override the limit). Kernels of newer tiers are assembled for their tier, those of sm_90 by --newer (from CUDA
12.1 on, such as in PyPI's triton), because some of them need PTX 8.1. --tier keeps to one tier.
"""
import argparse
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
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("ptxas")
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--newer", help="ptxas for sm_90; default: PTXAS")
    parser.add_argument("--tier", type=int)
    arguments = parser.parse_args()
    print("| kernel | tier | registers | shared bytes | spill st/ld | with 63: registers | spill st/ld |")
    print("|---|---|---|---|---|---|---|")
    for path in sorted(arguments.folder.glob("*.ptx")):
        text = path.read_text()
        tier = int(re.search(r"\.sm(\d+)\.ptx$", path.name).group(1)) if ".sm" in path.name else 20
        if arguments.tier not in (None, tier):
            continue
        if tier == 90:  # as cmake/embed_ptx.cmake does
            version = "8.1" if re.search(r"st\.async|mbarrier", text) else "7.8"
            text = re.sub(r"\.version [0-9.]+", f".version {version}", re.sub(r"\.target sm_[0-9]+", ".target sm_90", text))
        free = assemble(arguments.newer or arguments.ptxas if tier == 90 else arguments.ptxas, text, f"sm_{max(tier, 35)}")
        limited = assemble(arguments.ptxas, re.sub(r"\.maxntid[^\n]*", "", text), "sm_35", 63) if tier == 20 else {}
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
