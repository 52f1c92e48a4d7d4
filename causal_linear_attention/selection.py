"""Selects the backend, and warns if the compiled kernels of a device cannot run.

`KERNELS` lists the kernels for each type of device. "auto" takes the first of a device that supports the
inputs and can run there; without one, PyTorch runs.
"""

import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import takewhile

import torch
from torch import Tensor

from . import extension, operators, triton_backend

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Kernels:
    """The inputs that the kernels of one backend support.

    Attributes:
        home: the type of device they run on.
        dtypes: of q, k and v.
        attend: `(q, k, v, state, log_decay, normalize, eps, cu_seqlens, return_state, scale=1) -> (out,
            state)`, differentiable.
        step: `(q, k, v, state, normalize, eps, decay, scale) -> (out, state)` of one position, without a
            derivative.
        reason: why they cannot run on a device, in one clause without a full stop; "" if they can.
        max_dim: the largest D and M of inputs of a dtype, with or without decays, if there is one.
    """

    home: str
    dtypes: tuple[torch.dtype, ...]
    attend: Callable[..., tuple[Tensor, Tensor]]
    step: Callable[..., tuple[Tensor, Tensor]]
    reason: Callable[[torch.device], str]
    max_dim: Callable[[torch.dtype, bool], int | None] = lambda dtype, decays: None


KERNELS = {
    "cpp": Kernels(
        home="cpu",
        dtypes=(torch.float32, torch.float64, torch.bfloat16, torch.float16),
        attend=operators.attend,
        step=operators.step,
        reason=lambda device: extension.reason("cpp"),
    ),
    "cuda": Kernels(
        home="cuda",
        dtypes=(torch.float32, torch.bfloat16, torch.float16),
        attend=operators.attend,
        step=operators.step,
        reason=extension.reason_on_gpu,
        # The state stays in registers.
        max_dim=lambda dtype, decays: 256 if dtype.itemsize == 2 and not decays else 128,
    ),
    "triton": Kernels(
        home="cuda",
        dtypes=triton_backend.DTYPES,
        attend=partial(operators.attend, triton=True),
        step=operators.triton_step,
        reason=triton_backend.reason,
        max_dim=lambda dtype, decays: triton_backend.MAX_DIM,
    ),
}
BACKENDS = (*KERNELS, "torch", "reference")
# By type of device, the kernels in the order in which "auto" tries them; first the compiled ones.
_AUTO = {home: tuple(x for x, kernels in KERNELS.items() if kernels.home == home) for home in ("cpu", "cuda")}


def select_backend(
    backend: str,
    device: torch.device | str = "cpu",
    dtype: torch.dtype = torch.float32,
    dim: int = 1,
    decays: bool = False,
) -> str:
    """The name of the backend that runs for `backend` on `device` with inputs of `dtype`.

    "auto" selects the device's first kernels that can run there and support the inputs, else "torch".

    Args:
        backend: "auto" or one of `BACKENDS`.
        device, dtype: of q, k and v.
        dim: the larger of D and M.
        decays: whether `log_decay` is given.

    Raises:
        ValueError: for an unknown name, or kernels that are missing or do not support the inputs.
    """
    device = torch.device(device)
    if backend == "auto":
        for name in _AUTO.get(device.type, ()):
            if not _unsupported(KERNELS[name], dtype, dim, decays) and not KERNELS[name].reason(device):
                return name
        return "torch"
    if backend not in BACKENDS:
        names = ", ".join(["auto", *BACKENDS])
        raise ValueError(f"backend is {backend!r}; expected one of {names}")
    if kernels := KERNELS.get(backend):
        if device.type != kernels.home:
            raise ValueError(f"backend is {backend!r}; expected inputs on {kernels.home}, not {device.type}")
        if why := kernels.reason(device):
            raise ValueError(f"backend is {backend!r}, but {why}")
        if what := _unsupported(kernels, dtype, dim, decays):
            raise ValueError(f"backend is {backend!r}; expected {what}")
    return backend


def _unsupported(kernels: Kernels, dtype: torch.dtype, dim: int, decays: bool) -> str:
    """The expected and the given property of unsupported inputs; "" if the kernels support them."""
    if dtype not in kernels.dtypes:
        names = ", ".join(str(x).removeprefix("torch.") for x in kernels.dtypes)
        return f"inputs of {names}, not {dtype}"
    largest = kernels.max_dim(dtype, decays)
    if largest and dim > largest:
        return f"D and M of at most {largest}, not {dim}"
    return ""


_announced: set[tuple[str, torch.device]] = set()
_announcing = threading.Lock()


def announce(name: str, device: torch.device) -> None:
    """Log once per device which backend "auto" selects; a WARNING if its compiled kernels cannot run."""
    if (name, device) in _announced:
        return
    with _announcing:
        if (name, device) in _announced:
            return
        _announced.add((name, device))
    order = _AUTO.get(device.type, ())
    passed_over = takewhile(lambda kernels: kernels != name, order)
    reasons = {kernels: why for kernels in passed_over if (why := KERNELS[kernels].reason(device))}
    compiled_are_missing = any(kernels in reasons for kernels in order[:1])
    said = [f"instruction set {extension.instruction_set()}"] if name == "cpp" else reasons.values()
    logger.log(
        logging.WARNING if compiled_are_missing else logging.INFO,
        "causal linear attention runs on backend %s on %s%s",
        name,
        device,
        f" ({'; '.join(said)})" if said else "",
    )
