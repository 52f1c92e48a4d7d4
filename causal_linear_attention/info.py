"""`python -m causal_linear_attention.info`: what is installed, what runs by default, and whether it works.

The self-test compares every available backend with the quadratic definition in float64, forward and
backward, on small random inputs. On a CPU it takes about two seconds; on a GPU Triton first compiles 96
kernels, which takes some minutes, so each result is printed as it comes. The exit code is 1 if a comparison
fails.
"""

import argparse
import importlib.metadata
import json
import platform
import sys
from collections.abc import Iterator
from pathlib import Path

import torch

from . import __version__, extension, reference, triton_backend
from .chunked import normalized
from .functional import causal_linear_attention
from .selection import BACKENDS, select_backend

SHAPES = [(2, 3, 70, 16, 24), (1, 2, 300, 64, 64), (1, 1, 33, 5, 7)]
# Allowed relative errors: a few roundings of the dtype, since products are summed in float32 or better.
TOLERANCES = {
    torch.float64: 1e-11,
    torch.float32: 3e-5,
    torch.bfloat16: 1e-2,
    torch.float16: 3e-3,
}


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m causal_linear_attention.info", description=__doc__)
    parser.add_argument("--json", action="store_true", help="print JSON instead of text")
    parser.add_argument("--no-self-test", action="store_true", help="print only what is installed")
    options = parser.parse_args(arguments)
    facts = describe()
    if not options.json:
        print(as_text(facts), flush=True)
    results = []
    for result in () if options.no_self_test else self_test():
        results.append(result)
        print(as_line(result), file=sys.stderr if options.json else sys.stdout, flush=True)
    if options.json:
        print(json.dumps(facts if options.no_self_test else {**facts, "self-test": results}, indent=2))
    return 0 if all(x["passed"] for x in results) else 1


def describe() -> dict:
    """Versions, the build, the machine, and the backends that "auto" selects."""
    devices = ["cpu"] + (["cuda"] if torch.cuda.is_available() else [])
    build, triton = extension.build_info(), f"available (triton {triton_backend.version()})"
    return {
        "version": __version__,
        "folder": str(Path(__file__).parent),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "threads": torch.get_num_threads(),
        "built for torch": build.get("torch", ""),
        "C++ compiler": build.get("cpu_compiler", ""),
        "CUDA compiler": build.get("nvcc", ""),
        "CUDA architectures": build.get("cuda_archs", []),
        "C++ kernels": extension.reason("cpp") or "available",
        "CUDA kernels": extension.reason("cuda") or "available",
        "Triton kernels": triton_backend.reason(torch.device("cuda")) or triton,
        "instruction sets": extension.available_instruction_sets(),
        "instruction set": extension.instruction_set(),
        "GPUs": [_gpu(index) for index in range(torch.cuda.device_count())],
        "peers": peers(),
        "default": {device: select_backend("auto", device) for device in devices},
    }


def _gpu(index: int) -> str:
    name = torch.cuda.get_device_name(index)
    why = "" if extension.reason("cuda") else extension.reason_on_gpu(torch.device("cuda", index))
    return f"{name} ({why})" if why else name


def peers() -> dict[str, str]:
    """Other installed implementations, by package."""
    found = {}
    for name in ("pytorch-fast-transformers", "flash-linear-attention"):
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def self_test() -> Iterator[dict]:
    """One entry per backend, device and dtype: the largest relative error and whether it is acceptable."""
    for device in ["cpu"] + (["cuda"] if torch.cuda.is_available() else []):
        for backend in BACKENDS:
            for dtype, tolerance in TOLERANCES.items():
                try:
                    select_backend(backend, device, dtype)
                except ValueError:
                    continue
                if backend == "reference" and dtype != torch.float64:
                    continue
                error = max(_error(backend, device, dtype, n, s) for s in SHAPES for n in (False, True))
                yield {
                    "backend": backend,
                    "device": device,
                    "dtype": str(dtype).removeprefix("torch."),
                    "error": error,
                    "passed": error <= tolerance,
                }


def _error(backend: str, device: str, dtype: torch.dtype, normalize: bool, shape: tuple) -> float:
    """The largest RMS(error) / RMS(truth) of the output, the state and the gradients."""
    batch, heads, length, dim, width = shape
    generator = torch.Generator().manual_seed(length)

    def draw(*sizes):
        return torch.rand(*sizes, generator=generator, dtype=torch.float64) + 0.1

    wide = torch.float64 if dtype == torch.float64 else torch.float32
    given = [draw(batch, heads, length, x).to(dtype) for x in (dim, dim, width)]
    given.append(draw(batch, heads, dim, width + normalize).to(wide))
    weights = draw(batch, heads, length, width).to(dtype).double()

    truth = [x.double().requires_grad_() for x in given]
    if normalize:
        out, state = normalized(reference.quadratic, *truth[:3], 1e-6, truth[3])
    else:
        out, state = reference.quadratic(*truth)
    expected = [out, state, *torch.autograd.grad((out * weights).sum() + state.sum(), truth)]

    tested = [x.to(device).requires_grad_() for x in given]
    out, state = causal_linear_attention(
        *tested[:3], initial_state=tested[3], normalize=normalize, return_state=True, backend=backend
    )
    loss = (out.double() * weights.to(device)).sum() + state.double().sum()
    found = [out, state, *torch.autograd.grad(loss, tested)]
    return max(
        float((x.detach().cpu().double() - y.detach()).norm() / y.detach().norm())
        for x, y in zip(found, expected, strict=True)
    )


def as_text(facts: dict) -> str:
    """The facts, a line each; empty values as a dash."""
    lines = []
    for name, value in facts.items():
        if isinstance(value, dict):
            value = ", ".join(f"{key}: {x}" for key, x in value.items())
        elif isinstance(value, list):
            value = ", ".join(value)
        lines.append(f"{name:20} {value or '-'}")
    return "\n".join(lines)


def as_line(result: dict) -> str:
    """A result of the self-test."""
    verdict = "ok" if result["passed"] else "WRONG"
    return (
        f"{'self-test':20} {result['backend']:10} {result['device']:5} {result['dtype']:9} "
        f"relative error {result['error']:.1e}  {verdict}"
    )


if __name__ == "__main__":
    sys.exit(main())
