"""Comparison with arrays computed with the authors' code."""

import json
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn


def relative(got: Tensor, want: np.ndarray | Tensor) -> float:
    """The largest difference, in parts of the largest value wanted."""
    got, want = got.detach(), torch.as_tensor(want)
    return float((got - want).abs().max() / want.abs().max())


def load(golden_dir: Path, file: str) -> dict[str, np.ndarray]:
    """The arrays of a file."""
    return {key: value for key, value in np.load(golden_dir / file).items() if key != "meta"}


def state(arrays: dict[str, np.ndarray], prefix: str = "state/") -> dict[str, Tensor]:
    """A state dict of the arrays whose names begin with `prefix`, without the prefix."""
    return {
        key.removeprefix(prefix): torch.tensor(value)
        for key, value in arrays.items()
        if key.startswith(prefix)
    }


def check(module: nn.Module, arrays: dict[str, np.ndarray], prefix: str = "") -> None:
    """Output, gradient of the input and gradients of all parameters named in the file."""
    _check_input(module, arrays, prefix[: prefix.find("/") + 1], prefix)
    gradients = state(arrays, f"{prefix}grad/")
    assert gradients
    parameters = dict(module.named_parameters())
    largest = max(g.abs().max() for g in gradients.values())
    for name, want in gradients.items():
        # The authors' key bias has a zero gradient under 1+elu sums but for rounding.
        scale = max(want.abs().max(), 1e-6 * largest)
        assert (parameters[name].grad - want).abs().max() / scale < 5e-5, name


def check_attend(
    module: nn.Module, arrays: dict[str, np.ndarray], place: str, run: str, padding: Tensor | None = None
) -> None:
    """Output and gradients of `module.attend` for the heads' q, k and v at `place`."""
    q, k, v = (torch.tensor(arrays[f"{place}/{name}"], requires_grad=True) for name in "qkv")
    out = module.attend(q, k, v, padding)
    assert relative(out, arrays[f"{run}/output"]) < 1e-5
    out.backward(torch.tensor(arrays[f"{place}/cotangent"]))
    for name, x in zip("qkv", (q, k, v), strict=True):
        assert relative(x.grad, arrays[f"{run}/grad_{name}"]) < 5e-5


def check_run(module: nn.Module, golden_dir: Path, file: str, run: str) -> None:
    """`check` a run of a file that names the parameters whose gradient is zero by analysis."""
    meta = json.loads(str(np.load(golden_dir / file)["meta"]))
    zero = meta["runs"][run]["analytically_zero_gradient"]
    arrays = load(golden_dir, file)
    _check_input(module, arrays, run[: run.rindex("/") + 1], f"{run}/")
    for name, parameter in module.named_parameters():
        if name in zero:
            assert parameter.grad.abs().max() < 1e-5
        else:
            assert relative(parameter.grad, arrays[f"{run}/grad/{name}"]) < 5e-5, name


def _check_input(module: nn.Module, arrays: dict[str, np.ndarray], place: str, run: str) -> None:
    """Output and gradient of the input; the parameters then have theirs."""
    x = torch.tensor(arrays[f"{place}input"], requires_grad=True)
    out, _ = module(x)
    assert relative(out, arrays[f"{run}output"]) < 1e-5
    out.backward(torch.tensor(arrays[f"{place}cotangent"]))
    assert relative(x.grad, arrays[f"{run}grad_input"]) < 5e-5
