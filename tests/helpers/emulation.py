"""The CUDA kernels compiled for the CPU (tests/cpp/emulation.cpp), called with tensors."""

import ctypes
import shutil
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch

from causal_linear_attention.fused_outputs import aligned_rows

COMPILER = shutil.which("g++")
LIBRARY = "emulation.so"
# Where the CUDA kernels of a step run.
ON_A_GPU = [
    pytest.param("emulated", marks=pytest.mark.exhaustive),
    pytest.param("cuda", marks=pytest.mark.cuda),
]
DTYPES = {torch.float32: 0, torch.bfloat16: 2, torch.float16: 3}
FLAGS = ["-std=c++20", "-fPIC", "-Wall", "-Wextra", "-Werror", "-Wno-unknown-pragmas"]
# Locals that are read before they are written hold huge numbers.
FLAGS += ["-ftrivial-auto-var-init=pattern", "-ffp-contract=off"]


def build(root: Path, folder: Path, capability: int) -> None:
    """Build the kernels in `folder` as a GPU of this compute capability (75 or 80) would run them."""
    kernels, tests = root / "causal_linear_attention" / "csrc" / "cuda", root / "tests" / "cpp"
    flags = [*FLAGS, f"-DCLA_CAPABILITY={capability}", f"-I{tests}", f"-I{kernels}"]

    def compile_(source: Path) -> str:
        target = str(folder / f"{source.stem}.o")
        # Few tests ask for the older GPU and for decays, which are built sooner so.
        level = "-O1" if capability >= 80 and "decayed" not in source.stem else "-O0"
        subprocess.run([COMPILER, *flags, level, "-x", "c++", "-c", str(source), "-o", target], check=True)
        return target

    sources = [path for path in sorted(kernels.glob("*.cu")) if path.name != "available.cu"]
    with ThreadPoolExecutor(2) as pool:
        emulator = [tests / f"{name}.cpp" for name in ("emulation", "emulated_blocks", "emulated_probes")]
        objects = list(pool.map(compile_, [*sources, *emulator]))
    subprocess.run([COMPILER, "-shared", *objects, "-o", str(folder / LIBRARY)], check=True)


def load(folder: Path) -> ctypes.CDLL:
    """The kernels that `build` left in `folder`."""
    result = ctypes.CDLL(str(folder / LIBRARY))
    steps = ("step", "norm_step", "block_step", "rms_norm", "residual", "gated", "features", "blocks")
    result.blocks_bytes.restype = ctypes.c_int64
    for name in ("emulate", *(f"emulate_{step}" for step in steps), "probe_product", "probe_load"):
        getattr(result, name).restype = ctypes.c_char_p
    return result


class HostArray(ctypes.Structure):
    """As in emulation.cpp."""

    _fields_ = [("data", ctypes.c_void_p)] + [(x, ctypes.c_int64) for x in ("bytes", "batch", "head", "row")]


def _array(x: torch.Tensor | None) -> HostArray:
    if x is None or x.numel() == 0:
        return HostArray()
    strides = [*x.stride()[:3]] if x.dim() == 4 else [0, 0, 0]
    numbers = sum((n - 1) * step for n, step in zip(x.shape, x.stride(), strict=True)) + 1
    return HostArray(x.data_ptr(), numbers * x.element_size(), *strides)


def emulate(
    library,
    q,
    k,
    v,
    state,
    grad_out,
    grad_state,
    normalize,
    device,
    decay=None,
    order=0,
    at_end=True,
    bounds=None,
    scale=1.0,
):
    """Output, final state, the gradients of q, k, v and the state, and with decays that of their logarithms.

    What the kernels do not write stays NaN. As `attend` of operators.py, this multiplies the output's
    gradient by `scale` and sums the gradients of heads that share one of k. `device` is (compute capability,
    multiprocessors, bytes of shared memory), `bounds` the cu_seqlens, `decay` e^log_decay, `(H,)` or
    `(B, H, N)`.
    """
    grad_out, heads = grad_out * scale, k.shape[1]
    columns = v.shape[-1] + normalize
    states = q.shape[0] if bounds is None else len(bounds) - 1

    def new_state(heads):
        return torch.full((states, heads, q.shape[-1], columns), torch.nan)

    def by_head(x):
        return x if heads in (0, x.shape[1]) else x.unflatten(1, (heads, -1)).sum(2)

    inverse = torch.full(q.shape[:3], torch.nan) if normalize else None
    of_q = q.shape[:3]
    out, grad_k, grad_v = (q.new_full((*of_q, x.shape[-1]), torch.nan) for x in (v, k, v))
    final, grad_initial, grads = (
        new_state(heads),
        new_state(q.shape[1]),
        [torch.full_like(q, torch.nan), grad_k, grad_v],
    )
    grad_decay = None if decay is None else torch.full(q.shape[:3], torch.nan)
    if decay is not None:
        decay = (decay[:, None] if decay.dim() == 1 else decay).expand(k.shape[:3]).unsqueeze(-1)
    tensors = [q, k, v, state, out, final, inverse, grad_out, grad_state, *grads, grad_initial, bounds]
    arrays = (HostArray * 16)(*[_array(x) for x in (*tensors, decay, grad_decay)])
    shape = (ctypes.c_int64 * 6)(*q.shape, v.shape[-1], q.shape[1] // max(heads, 1))
    options = DTYPES[q.dtype], int(normalize), ctypes.c_double(scale)
    error = library.emulate(shape, *options, arrays, (ctypes.c_int * 3)(*device), order, int(at_end))
    if error:
        raise RuntimeError(error.decode())
    grads = [grads[0], *map(by_head, (*grads[1:], grad_initial, *([] if decay is None else [grad_decay])))]
    return out, final, *grads


def emulate_step(library, q, k, v, state, normalize, decay=None, order=0, at_end=True):
    """Output and new state of one decoding position; numbers that the kernel does not write stay NaN.

    `decay` is e^log_decay, `(H,)` or `(B, H)`, H as of k.
    """
    if decay is not None:
        decay = decay.expand(k.shape[:2])[..., None, None]
    out, new = q.new_full((*q.shape[:2], v.shape[-1]), torch.nan), torch.full_like(state, torch.nan)
    arrays = (HostArray * 7)(*[_array(x) for x in (q, k, v, state, out, new, decay)])
    group = q.shape[1] // max(k.shape[1], 1)
    shape = (ctypes.c_int64 * 6)(*q.shape[:2], 1, q.shape[-1], v.shape[-1], group)
    error = library.emulate_step(shape, DTYPES[q.dtype], int(normalize), arrays, order, int(at_end))
    if error:
        raise RuntimeError(error.decode())
    return out, new


def _call(function, shape: list[int], *options, arrays: list[torch.Tensor], order: int, at_end: bool) -> None:
    error = function(
        (ctypes.c_int64 * len(shape))(*shape),
        *options,
        (HostArray * len(arrays))(*[_array(x) for x in arrays]),
        order,
        int(at_end),
    )
    if error:
        raise RuntimeError(error.decode())


def norm_step(library, *given, order=0, at_end=True):
    """As `decoding.norm_step`; numbers that the kernel does not write stay NaN."""
    *tensors, state, one_plus = given
    tensors = [x.contiguous() for x in (*tensors, state)]
    q, state = tensors[0], tensors[-1]
    out, new = torch.full_like(q, torch.nan), torch.full_like(state, torch.nan)
    shape, arrays = [*q.shape[:2], q.shape[3]], [*tensors, out, new]
    _call(library.emulate_norm_step, shape, int(one_plus), arrays=arrays, order=order, at_end=at_end)
    return out, new


def block_step(library, *given, order=0, at_end=True):
    """As `decoding.block_step`."""
    *tensors, scale, places, keys, values, softmax = given
    tensors = [x.contiguous() for x in (*tensors, places)]
    q, out = tensors[0], torch.full_like(tensors[0], torch.nan)
    shape, arrays = [*q.shape[:2], q.shape[3], keys.shape[2]], [*tensors, keys, values, out]
    options = int(softmax), ctypes.c_float(scale)
    _call(library.emulate_block_step, shape, *options, arrays=arrays, order=order, at_end=at_end)
    return out


def rms_norm(library, x, grad, order=0, at_end=True):
    """Output, root mean squares and gradient of RMSNorm over `x: (rows, D)`."""
    out, grad_x = torch.full_like(x, torch.nan), torch.full_like(x, torch.nan)
    root = torch.full((len(x),), torch.nan)
    options, arrays = (DTYPES[x.dtype],), [x, grad, out, root, grad_x]
    _call(library.emulate_rms_norm, list(x.shape), *options, arrays=arrays, order=order, at_end=at_end)
    return out, root, grad_x


def residual(library, x, y, seed, p, grad_sum, grad_out, order=0, at_end=True):
    """Sum, norm, root mean squares and the gradients of x and y (None without a seed) of `fused.residual`."""
    total, out, grad_x = (torch.full_like(x, torch.nan) for _ in range(3))
    root = torch.full((len(x),), torch.nan)
    grad_y = None if seed is None else torch.full_like(x, torch.nan)
    arrays = [x, y, seed, total, out, root, grad_sum, grad_out, grad_x, grad_y]
    options = DTYPES[x.dtype], ctypes.c_double(p)
    _call(library.emulate_residual, list(x.shape), *options, arrays=arrays, order=order, at_end=at_end)
    return total, out, root, grad_x, grad_y


def gated(library, inputs, grad, order=0, at_end=True):
    """The product, the gradient of the inputs and the product again of `fused.gated`."""
    out, again = (torch.full(grad.shape, torch.nan, dtype=grad.dtype) for _ in range(2))
    grad_inputs = aligned_rows(inputs, *inputs.shape).fill_(torch.nan)
    arrays = [inputs, grad, out, grad_inputs, again]
    _call(
        library.emulate_gated,
        [*grad.shape, *(x.stride(0) for x in (inputs, grad, grad_inputs))],
        DTYPES[grad.dtype],
        arrays=arrays,
        order=order,
        at_end=at_end,
    )
    return out, grad_inputs, again


def features(library, qkv, direction, theta, heads, map, scale, grads, order=0, at_end=True):
    """q, k and the gradients of qkv and theta of `fused.features`."""
    length, batch, width = qkv.shape
    q, k = (torch.full_like(grads[0], torch.nan) for _ in range(2))
    grad_qkv, grad_theta = torch.full_like(qkv, torch.nan), None
    if theta is not None:
        theta = theta.double().flatten()
        grad_theta = torch.full((-(-length // 16) * batch * heads, len(theta)), torch.nan)
    arrays = [qkv, direction, theta, q, k, *grads, grad_qkv, grad_theta]
    options = DTYPES[qkv.dtype], map, ctypes.c_double(scale)
    shape = [length, batch, heads, width // 3 // heads]
    _call(library.emulate_features, shape, *options, arrays=arrays, order=order, at_end=at_end)
    return q, k, grad_qkv, None if grad_theta is None else grad_theta.sum(0)


def blocks(
    library, qkv, direction, theta, heads, size, scale, causal, softmax, padding, seed, p, grad, **order
):
    """Output and the gradients of qkv and theta of `fused.blocks`; order and at_end as for the others."""
    length, batch, width = qkv.shape
    out, grad_qkv, grad_theta = torch.full_like(grad, torch.nan), torch.full_like(qkv, torch.nan), None
    if theta is not None:
        theta = theta.double().flatten()
        parts = -(-length // min(size, length)) * batch * heads
        grad_theta = torch.full((parts, len(theta)), torch.nan)
    arrays = [qkv, direction, theta, padding, seed, out, grad, grad_qkv, grad_theta]
    options = DTYPES[qkv.dtype], int(causal), int(softmax), ctypes.c_double(scale), ctypes.c_double(p)
    shape = [length, batch, heads, width // 3 // heads, size]
    _call(library.emulate_blocks, shape, *options, arrays=arrays, **{"order": 0, "at_end": True, **order})
    return out, grad_qkv, None if grad_theta is None else grad_theta.sum(0)
