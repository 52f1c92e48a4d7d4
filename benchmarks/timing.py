"""Times of calls in one process, in turns, and the machine's own speed."""

import time
from collections.abc import Callable

import torch

SAMPLE_MS = 10
ENOUGH_MS = 2000  # of a case of operator_cost.py


def clock(device: str) -> float:
    """Seconds, once the device has done its work."""
    if device == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter()


def measure(
    functions: dict[str, Callable[[], object]], device: str, rounds: int, enough_ms: float = 0.0
) -> dict[str, list[float]]:
    """Milliseconds per call, `rounds` times each in turns, or up to five times as often in `enough_ms`.

    A short call is repeated for about ten milliseconds. Each sample starts with a call that does not count,
    since another function has used the caches and the heap.
    """

    def sample(function: Callable[[], object], calls: int) -> float:
        start = clock(device)
        for _ in range(calls):
            function()
        return (clock(device) - start) * 1e3 / calls

    repeats = {}
    for name, function in functions.items():
        function()
        repeats[name] = max(1, int(SAMPLE_MS / max(sample(function, 1), 1e-3)))
    times = {name: [] for name in functions}
    begin = clock(device)
    for done in range(5 * rounds):
        if done >= rounds and (clock(device) - begin) * 1e3 > enough_ms:
            break
        for name, function in functions.items():
            function()
            times[name].append(sample(function, repeats[name]))
    return times


def forward_and_backward(function, q, k, v, grad):
    """A call that computes `function(q, k, v)` and the gradients of q, k and v, given that of the output."""

    def run():
        leaves = [x.detach().requires_grad_() for x in (q, k, v)]
        torch.autograd.grad(function(*leaves), leaves, grad)

    return run


def peak(device: str, dtype: torch.dtype) -> dict[str, float]:
    """The machine's own measure: GF/s of a matrix product and GB/s of a copy, best of several."""
    n = 8192 if device == "cuda" else 2048
    a, b = (torch.randn(n, n, device=device, dtype=dtype) for _ in range(2))
    product = min(measure({"x": lambda: a @ b}, device, 5)["x"])
    x = torch.empty(2**28 if device == "cuda" else 2**25, device=device)
    y = torch.empty_like(x)
    copy = min(measure({"x": lambda: y.copy_(x)}, device, 5)["x"])
    return {"GF/s": 2 * n**3 / product / 1e6, "GB/s": 2 * x.numel() * 4 / copy / 1e6}
