#!/usr/bin/env python3
"""What the CUDA kernels ask of a multiprocessor, without a GPU: registers, spills, instructions.

Compiles csrc/cuda (or the same folder of another checkout, --sources) with nvcc for each architecture and
reads nvcc's report; instructions are counted where cuobjdump and nvdisasm are found (packages
nvidia-cuda-cuobjdump and nvidia-cuda-nvdisasm). Writes cuda_resources.json and .md into --out. Takes about
ten minutes for two architectures.
"""

import argparse
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import build_machine
from pipeline.console import Parser, add_out_dir, out_dir, run_command
from pipeline.errors import UserError
from pipeline.files import BENCHMARKS, ROOT, shown_path, write_atomically, write_json
from pipeline.outputs import check_output, json_with
from pipeline.provenance import commit, environment
from pipeline.reports.costs.cuda_resources import count_instructions, markdown, parse_report

RESULT = json_with("environment", "nvcc", "kernels")
SOURCES = ROOT / "causal_linear_attention" / "csrc" / "cuda"


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
    """The command line."""
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
    """Entry point."""
    arguments = parse_arguments()
    path = (out_dir(arguments) or BENCHMARKS / "cuda") / "cuda_resources.json"
    check_output(path, RESULT, beside=(".md",), makes_folder=True)
    try:
        nvcc = build_machine.nvcc()
    except build_machine.Skipped as why:
        raise UserError(f"{why}; install the CUDA toolkit or name its folder in CUDA_HOME") from None
    about = {"environment": environment("cpu"), "commit": commit(arguments.sources)}
    kernels: list[dict[str, Any]] = []
    sources = sorted(arguments.sources.glob("*.cu"))
    todo = [(source, arch) for arch in arguments.archs for source in sources]
    for number, (source, arch) in enumerate(todo, 1):
        found = compile_report(nvcc, source, arch)
        kernels += found
        print(f"[{number}/{len(todo)}] {source.name}, sm_{arch}: {len(found)} kernels", flush=True)
    result = {**about, "nvcc": build_machine.first_line([nvcc, "--version"], "release"), "kernels": kernels}
    write_json(path, result)
    write_atomically(path.with_suffix(".md"), markdown(result).encode())
    print(f"written: {shown_path(path)}, {shown_path(path.with_suffix('.md'))}")


if __name__ == "__main__":
    run_command(main)
