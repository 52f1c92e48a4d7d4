#!/usr/bin/env python3
"""Resources of the CUDA kernels, found without a GPU: registers, spills, instructions.

Compiles csrc/cuda (or the same folder of another checkout, --sources) with nvcc for each architecture and
reads nvcc's report; instructions are counted where cuobjdump and nvdisasm are found (packages
nvidia-cuda-cuobjdump and nvidia-cuda-nvdisasm). Writes cuda_resources.json and .md into --out. Two
architectures take about ten minutes of two cores.
"""

import argparse
import os
import re
import shutil
import subprocess
import tempfile
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from pathlib import Path
from typing import Any

if not (find_spec("torch") and find_spec("benchmarks")):
    raise SystemExit("error: not this project's Python; run .venv/bin/python benchmarks/cuda_resources.py")

import build_machine
from lab.console import Parser, add_out_dir, out_dir, run_command
from lab.errors import UserError
from lab.files import (
    BENCHMARKS,
    ROOT,
    check_output,
    json_with,
    marked,
    shown_path,
    write_atomically,
    write_json,
)
from lab.provenance import commit, environment
from lab.publish.tables import markdown_table

RESULT = json_with("environment", "nvcc", "kernels")
SOURCES = ROOT / "causal_linear_attention" / "csrc" / "cuda"
DTYPES = {"f": "float32", "Bf16": "bfloat16", "Half": "float16"}
REGISTERS, WARP = 65_536, 32  # of a multiprocessor; a thread's are given out by eight
MOST_WARPS = 8  # of a block, as in copy.cuh
_KERNEL = re.compile(r"\d+((?:forward|backward|step)_kernel)I(\S+)EEvNS")
_ARGUMENT = re.compile(r"NS\d*_\d+(Bf16|Half)E|L(?:[ib]|NS\d*_\d+[A-Za-z]+E)(\d+)E|(f)")
_REPORT = re.compile(
    r"Compiling entry function '(\S+)' for '(\S+)'.*?(\d+) bytes spill stores.*?Used (\d+) registers",
    re.DOTALL,
)


def parse_name(mangled: str) -> dict[str, Any] | None:
    """A kernel's instance by its mangled name; None for other functions."""
    found = _KERNEL.search(mangled)
    if found is None:
        return None
    kind, *_ = found.groups()
    dtype, *rest = [a or b or c for a, b, c in _ARGUMENT.findall(found[2])]
    record: dict[str, Any] = {"kernel": kind, "dtype": DTYPES[dtype]}
    if kind in ("forward_kernel", "backward_kernel"):
        normalize, columns, aligned, decayed = map(int, rest)
        record |= {"normalize": bool(normalize), "columns": 16 * columns, "aligned": bool(aligned)}
        record |= {"decayed": True} if decayed else {}
    return record


def parse_report(report: str) -> dict[str, dict[str, Any]]:
    """Architecture, registers and spilled bytes of each kernel in the output of nvcc -Xptxas -v."""
    found = {}
    for name, arch, spilled, registers in _REPORT.findall(report):
        if (record := parse_name(name)) is not None:
            found[name] = {**record, "arch": arch, "registers": int(registers), "spilled": int(spilled)}
    return found


def count_instructions(machine_code: str) -> dict[str, dict[str, list[int]]]:
    """Instructions and matrix products of each kernel's loops over chunks, from cuobjdump -sass.

    Those are the loops that hold most of their products themselves, not in loops inside, and of these the one
    with the most products, in the backward pass the two (for dq, then for dk and dv) or three. Code that
    hardly ever runs, for rows that are not finite, does not count; code that only PMTRIG (`mark_rare`)
    reaches is such code. Loops in them count once.
    """
    found = {}
    for body in machine_code.split("Function : ")[1:]:
        code = [(int(at, 16), text) for at, text in re.findall(r"/\*([0-9a-f]{4,})\*/\s+(\S.*?)\s*;", body)]
        after = _successors(code)
        rare = _rare(code, after)
        products = {i for i, (_, text) in enumerate(code) if "HMMA" in text} - rare
        loops = [loop - rare for loop in _loops(after)]
        counts = []
        for loop in loops:
            inner = set().union(*(other for other in loops if other < loop))
            if 2 * len(products & inner) < len(products & loop):
                counts.append((len(products & loop), len(loop)))
        if counts:
            walks = sorted(counts)[-_loops_over_chunks(body.split()[0]) :]
            of_products, of_code = (list(x) for x in zip(*walks, strict=True))
            found[body.split()[0]] = {"instructions": of_code, "matrix_products": of_products}
    return found


def _loops_over_chunks(mangled: str) -> int:
    """How many loops the kernel has: backward one for dq, one for dk and dv, of wide heads one for each."""
    if "backward_kernel" not in mangled:
        return 1
    record = parse_name(mangled)
    return 3 if record is not None and record["columns"] > 16 * MOST_WARPS else 2


def _successors(code: list[tuple[int, str]]) -> list[list[int]]:
    """For each instruction the places of those that may run after it."""
    place = {address: i for i, (address, _) in enumerate(code)}
    after = []
    for i, (_, text) in enumerate(code):
        guard, name, operands = re.fullmatch(r"(@!?U?P\w+ +)?(\S+)(.*)", text, re.DOTALL).groups()
        jump = re.search(r"0x([0-9a-f]+)$", operands) if name.startswith("BRA") else None
        ends = name.startswith(("BRA", "EXIT", "RET", "BRX", "KILL"))
        falls = not ends or guard or (jump and re.match(r" +(!?U?P\d|~?UR)", operands))
        found = [i + 1] if falls and i + 1 < len(code) else []
        if jump and int(jump[1], 16) in place:
            found.append(place[int(jump[1], 16)])
        after.append(found)
    return after


def _reached(start: int, after: list[list[int]], without: int) -> set[int]:
    """Where `after` leads from `start` on paths that end at `without`, which counts."""
    found, todo = {without}, [start]
    while todo:
        if (i := todo.pop()) not in found:
            found.add(i)
            todo += after[i]
    return found


def _rare(code: list[tuple[int, str]], after: list[list[int]]) -> set[int]:
    """The instructions reached only through a mark, and the marks."""
    marks = [i for i, (_, text) in enumerate(code) if text.startswith("PMTRIG")]
    everything = _reached(0, after, -1)
    return set().union(*({mark} | (everything - _reached(0, after, mark)) for mark in marks))


def _loops(after: list[list[int]]) -> list[set[int]]:
    """The natural loops: code that leads back to a head that every path into the loop passes."""
    before: list[list[int]] = [[] for _ in after]
    for i, successors in enumerate(after):
        for j in successors:
            before[j].append(i)
    loops: dict[int, set[int]] = {}
    for end, successors in enumerate(after):
        for head in successors:
            if head <= end and (head == 0 or end == head or end not in _reached(0, after, head)):
                loops[head] = loops.get(head, set()) | _reached(end, before, head)
    return list(loops.values())


def blocks_by_registers(record: dict[str, Any]) -> int:
    """Blocks that fit a multiprocessor's registers: a warp for 16 columns, but at most eight."""
    of_warp = -(-record["registers"] // 8) * 8 * WARP
    return REGISTERS // of_warp // min(record["columns"] // 16, MOST_WARPS)


def markdown(result: dict[str, Any]) -> str:
    """The report's text."""
    about = result["environment"]
    kernels = [x for x in result["kernels"] if x.get("registers", 0) > 8 and x["kernel"] != "step_kernel"]
    parts = [
        f"CUDA kernels of commit {result['commit']} as {result['nvcc']} compiles them ({about['date']}, no "
        "GPU): registers of a thread, bytes spilled, blocks that fit the registers of a multiprocessor, and "
        "instructions of a warp for a chunk of rows (matrix products among them), loops inside counted once, "
        "without the code for rows that are not finite, which hardly ever runs. A chunk has 64 rows in the "
        "forward pass of heads of up to 64 columns in 16 bits, else 32. Kernels for any rows copy them in "
        "one of two ways, and both count. Backward has two loops over chunks, for dq and for dk and dv; of "
        "256 columns three, and a block has 128 columns of one output. Nothing here is a time."
    ]
    for arch in sorted({x["arch"] for x in kernels}):
        rows = [_row(x) for x in kernels if x["arch"] == arch]
        header = ["Kernel", "Type", "Registers", "Spilled", "Blocks", "Instructions", "Products"]
        parts.append(f"### {arch}\n\n" + markdown_table(header, sorted(rows)))
    return "\n\n".join(parts) + "\n"


def _row(record: dict[str, Any]) -> list[str]:
    job = record["kernel"].removesuffix("_kernel")
    name = f"D {record['columns']:>3}, {'aligned' if record['aligned'] else 'any'}, {job}"
    name += ", normaliser" if record["normalize"] else ""
    name += ", decays" if "decayed" in record else ""
    blocks = str(blocks_by_registers(record))
    counts = [" + ".join(map(str, record.get(key, []))) for key in ("instructions", "matrix_products")]
    return [name, record["dtype"], str(record["registers"]), str(record["spilled"]), blocks, *counts]


def compile_report(nvcc: str, source: Path, arch: str, *flags: str) -> list[dict[str, Any]]:
    """One record for each kernel in `source`, which is compiled for `arch` ("90a").

    Raises:
        UserError: nvcc fails; the message has its first line.
    """
    with tempfile.TemporaryDirectory() as folder:
        cubin = Path(folder, "kernels.cubin")
        target = [f"-gencode=arch=compute_{arch},code=sm_{arch}", "-Xptxas", "-v", "-cubin", *flags]
        done = _run([nvcc, "-std=c++20", "-O3", *target, str(source), "-o", str(cubin)])
        if done.returncode:
            raise UserError(f"nvcc fails on {source.name}: {done.stderr.strip().partition(chr(10))[0]}")
        kernels = parse_report(done.stdout + done.stderr)
        if kernels and (cuobjdump := shutil.which("cuobjdump")):
            for name, counts in count_instructions(_run([cuobjdump, "-sass", str(cubin)]).stdout).items():
                kernels[name].update(counts)
    return list(kernels.values())


def _run(command: list[str]) -> subprocess.CompletedProcess:
    return subprocess.run(command, capture_output=True, text=True, check=False)


def parse_arguments(argv: list[str] | None = None) -> argparse.Namespace:
    parser = Parser("benchmarks/cuda_resources.py", __doc__)
    add_out_dir(parser, shown_path(BENCHMARKS / "cuda"))
    parser.add_argument(
        "--archs",
        nargs="+",
        default=["80", "90a"],
        metavar="A",
        help="compute capabilities to compile for; default: 80 90a",
    )
    parser.add_argument(
        "--sources",
        type=Path,
        default=SOURCES,
        metavar="DIR",
        help="folder with the CUDA sources; default: csrc/cuda",
    )
    arguments = parser.parse_intermixed_args(argv)
    if not list(arguments.sources.glob("*.cu")):
        raise UserError(f"no .cu files in {arguments.sources}; name a folder csrc/cuda")
    return arguments


def main() -> None:
    arguments = parse_arguments()
    path = (out_dir(arguments) or BENCHMARKS / "cuda") / "cuda_resources.json"
    check_output(path, RESULT, beside=(".md",), makes_folder=True)
    try:
        nvcc = build_machine.nvcc()
    except build_machine.Skipped as why:
        raise UserError(f"{why}; install the CUDA toolkit or name its folder in CUDA_HOME") from None
    about = {"environment": environment("nvcc"), "commit": commit(arguments.sources)}
    kernels: list[dict[str, Any]] = []
    sources = sorted(arguments.sources.glob("*.cu"))
    todo = [(source, arch) for arch in arguments.archs for source in sources]
    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        reports = pool.map(lambda job: compile_report(nvcc, *job), todo)
        for number, ((source, arch), found) in enumerate(zip(todo, reports, strict=True), 1):
            kernels += found
            print(f"[{number}/{len(todo)}] {source.name}, sm_{arch}: {len(found)} kernels", flush=True)
    result = {**about, "nvcc": build_machine.first_line([nvcc, "--version"], "release"), "kernels": kernels}
    write_json(path, result)
    write_atomically(path.with_suffix(".md"), marked(markdown(result)).encode())
    print(f"written: {shown_path(path)}, {shown_path(path.with_suffix('.md'))}")


if __name__ == "__main__":
    run_command(main)
