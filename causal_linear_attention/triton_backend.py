"""Causal linear attention on Triton: whether it runs here, and the launches of `triton_kernels.py`.

Triton comes with torch's GPU packages and compiles the kernels at their first use, without nvcc. It is not
imported before.

float32 inputs are multiplied in float32, float64 in float64, bfloat16 in bfloat16. float16 is multiplied as
TensorFloat-32, which has its precision and float32's range: the states of a long sequence do not overflow.
Numbers other than float16 (scores, states, scaled rows) are rounded to TensorFloat-32 before, since tensor
cores would truncate them. Sums are float32 (float64 for float64 inputs).
"""

from dataclasses import dataclass
from functools import cache, cached_property
from types import ModuleType
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import _disable_current_modes

from .checks import check_step
from .chunked import accumulation_dtype
from .compiling import assume_constant_result
from .operators import NAMESPACE, new_decay_gradient, new_gradients, new_inverse, new_rows, new_state

MAX_DIM = 128
# Rows of a chunk, and columns of the state and of the outputs in one program: what registers hold.
_TILES = {torch.bfloat16: (32, 64), torch.float16: (32, 32), torch.float32: (16, 16), torch.float64: (16, 16)}
DTYPES = tuple(_TILES)
_SHORTEST_SEGMENT = 512  # rows
_STEP_NUMBERS = 4096  # of the state in one program of `step`
_KEPT_ROWS = 512  # over which the sum for log_decay's gradient runs, of chunks
_OLDEST = (3, 6)
_LOWEST_CAPABILITY = (8, 0)


@cache
def version() -> str:
    """The version of the installed Triton; "" if there is none."""
    try:
        import triton
    except ImportError:
        return ""
    return triton.__version__


class _Captured(Exception):
    """A CUDA graph is being captured, during which nothing can be tried."""


@assume_constant_result
def reason(device: torch.device) -> str:
    """Why Triton does not run on `device`, in one clause without a full stop; "" if it does.

    It is tried once per device, but not while a CUDA graph is captured.
    """
    try:
        return _reason(device)
    except _Captured:
        return f"triton {version()} has not run here before this CUDA graph; call the operator once before it"


@cache
def _reason(device: torch.device) -> str:
    if not version():
        return "the package triton is not installed"
    if tuple(int(x) for x in version().split(".")[:2]) < _OLDEST:
        return f"triton {version()} is older than {'.'.join(map(str, _OLDEST))}"
    if torch.version.cuda is None or not torch.cuda.is_available():
        return f"torch {torch.__version__} finds no NVIDIA GPU"
    capability = torch.cuda.get_device_capability(device)
    if capability < _LOWEST_CAPABILITY:
        return "triton needs compute capability {}.{}, not {}.{}".format(*_LOWEST_CAPABILITY, *capability)
    return _trial(device)


def _trial(device: torch.device) -> str:
    """Why the smallest kernel does not run there: a missing C compiler, say, or an old driver."""
    if device.type == "cuda" and torch.cuda.is_current_stream_capturing():
        raise _Captured
    try:
        with _disable_current_modes():  # of torch.export, whose tensors lack memory
            state = torch.zeros(1, device=device)
            with torch.cuda.device_of(state):
                arguments = (state, None, None, 1, torch.empty_like(state), 1, 1)
                _kernels().prefix[1, 1](*arguments, SIZE=1, REVERSE=False, BLOCK=16)
            state.cpu()
    except Exception as error:
        if "out of memory" in str(error):
            raise  # as any kernel might; this says nothing about Triton and must not be remembered
        first = (str(error).strip().splitlines() or [type(error).__name__])[0]
        return f"triton {version()} cannot run a kernel ({first})"
    return ""


def products(dtype: torch.dtype) -> tuple[str, str]:
    """The type of products for inputs of `dtype`, and tl.dot's precision."""
    if dtype == torch.float16:
        return "float32", "tf32"
    return str(dtype).removeprefix("torch."), "ieee"


@cache
def _multiprocessors(device: torch.device) -> int:
    return torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 1


def _dense(x: Tensor) -> Tensor:
    """x itself if its rows are dense."""
    return x if x.stride(-1) == 1 or x.shape[-1] <= 1 else x.contiguous()


def _block(columns: int) -> int:
    """The power of 2 that holds them, no less than a product of tensor cores takes."""
    return max(16, 1 << (columns - 1).bit_length())


def _parts(whole: int, part: int) -> int:
    return -(-whole // part)


@dataclass(frozen=True)
class _Launches:
    """The kernels' launches for inputs like q and v."""

    q: Tensor
    k: Tensor
    v: Tensor
    normalize: bool
    eps: float = 0.0
    cu_seqlens: Tensor | None = None
    decay: Tensor | None = None
    scale: float = 1.0

    @cached_property
    def constants(self) -> dict[str, Any]:
        import triton.language as tl

        operands, precision = products(self.q.dtype)
        keys, values = self.q.shape[-1], self.v.shape[-1]
        return {
            "KEYS": keys,
            "VALUES": values,
            "NORMALIZE": self.normalize,
            "CHUNK": self.tile[0],
            "CAST": getattr(tl, operands),
            "ACC": tl.float64 if self.q.dtype == torch.float64 else tl.float32,
            "PRECISION": precision,
            "num_warps": 8 if max(keys, values) * self.q.element_size() > 128 else 4,
            "num_stages": 3 if self.q.dtype == torch.bfloat16 else 2,
        }

    @property
    def tile(self) -> tuple[int, int]:
        return _TILES[self.q.dtype]

    @property
    def heads(self) -> int:
        """The number of heads of all sequences together."""
        sequences = len(self.q) if self.cu_seqlens is None else len(self.cu_seqlens) - 1
        return sequences * self.q.shape[1]

    @cached_property
    def segments(self) -> tuple[int, int]:
        """Their number and length: with few heads, sequences are cut to keep all multiprocessors busy.

        A multiprocessor holds two programs; only as many programs start as fit at once. Packed sequences are
        cut into as many, each by its own length.
        """
        rows, processors = self.q.shape[2], _multiprocessors(self.q.device)
        wanted = 2 * processors // self.heads if 0 < self.heads < processors else 1
        chunk = self.tile[0]
        number = max(1, min(wanted, rows // _SHORTEST_SEGMENT))
        length = max(1, _parts(rows, number * chunk)) * chunk
        return max(1, _parts(rows, length)), length

    @property
    def group(self) -> int:
        """Heads of q for each of k."""
        return self.q.shape[1] // max(self.k.shape[1], 1)

    def strides(self, x: Tensor | None) -> tuple[int, int, int, int]:
        """The strides of batch, heads and rows, and how many heads of q share one of x's."""
        if x is None:
            return 0, 0, 0, 1
        return *x.stride()[:3], self.q.shape[1] // max(x.shape[1], 1)

    @cached_property
    def decays(self) -> tuple[Tensor | None, int, int, int, int]:
        """As (batch, heads, rows), and their `strides`."""
        if self.decay is None:
            return None, *self.strides(None)
        decay = self.decay[:, None] if self.decay.dim() == 1 else self.decay
        decay = decay.expand(self.k.shape[:3])
        return decay, *self.strides(decay)

    def columns(self, x: Tensor) -> int:
        """In one program, of x's."""
        return min(_block(x.shape[-1]), self.tile[1])

    def chunk_scan(
        self,
        kind: str,
        a: Tensor,
        b: Tensor,
        c: Tensor,
        out: Tensor,
        entering: tuple[Tensor | None, int],
        leaving: tuple[Tensor | None, int],
        inverse: Tensor | None,
        slope: Tensor | None = None,
        outputs: Tensor | None = None,
        dotted: Tensor | None = None,
        sums: tuple[Tensor | None, ...] = (None,) * 4,
    ) -> None:
        """`entering` and `leaving` are states and how many heads share one.

        `sums` are the kernel's dots, kept, ends and grad_decay.
        """
        kernels = _kernels()
        tensors = (a, b, c, out, out if outputs is None else outputs)
        rows = [y for x in tensors for y in (x, self.strides(x))]
        _launch(
            self.q,
            kernels.chunk_scan,
            (self.heads * self.segments[0], _parts(out.shape[-1], self.columns(out))),
            *(*rows, *entering, *leaving, inverse, slope, *self.decays),
            *(dotted, self.strides(dotted), *sums),
            *(self.cu_seqlens, self.q.shape[1], self.q.shape[2], *self.segments, self.eps, self.scale),
            KIND=kind,
            DEPTH_BLOCK=_block(a.shape[-1]),
            WIDTH_BLOCK=self.columns(out),
            KEPT=_KEPT_ROWS,
            **self.constants,
        )

    def states(
        self,
        keys: Tensor,
        values: Tensor,
        initial: Tensor | None,
        final: Tensor,
        reverse: bool = False,
        inverse: Tensor | None = None,
        slope: Tensor | None = None,
    ) -> tuple[tuple[Tensor | None, int], tuple[Tensor | None, int]]:
        """The state before each segment, and the place of the scan's last state, unless `final` has it.

        Both with how many heads share a state. `final` may be empty: then the last states are not wanted.
        """
        number = self.segments[0]
        entering = initial, self.group
        leaving = final if final.numel() else None, 1 if reverse else self.group
        if number == 1:
            return entering, leaving
        kernels = _kernels()
        size = self.q.shape[-1] * (self.v.shape[-1] + self.normalize)
        block = self.columns(values)
        sums = self.q.new_empty(self.heads, number, size, dtype=accumulation_dtype(self.q.dtype))
        totals = None if self.decay is None else sums.new_empty(self.heads, number)
        _launch(
            self.q,
            kernels.segment_sums,
            (self.heads * number, _parts(values.shape[-1], block)),
            *(keys, self.strides(keys), values, self.strides(values), sums, inverse, slope),
            *(*self.decays, totals),
            *(self.cu_seqlens, self.q.shape[1], self.q.shape[2], *self.segments),
            REVERSE=reverse,
            KEY_BLOCK=_block(keys.shape[-1]),
            VALUE_BLOCK=block,
            **self.constants,
        )
        grid = (self.heads, _parts(size, 256))
        constants = {"SIZE": size, "REVERSE": reverse, "BLOCK": 256}
        _launch(self.q, kernels.prefix, grid, sums, totals, *entering, *leaving, number, **constants)
        return (sums, 1), (None, 1)


def _launch(like: Tensor, kernel: Any, grid: tuple[int, int], *arguments: Any, **constants: Any) -> None:
    if 0 not in grid:
        with torch.cuda.device_of(like):
            kernel[grid](*arguments, **constants)


def _kernels() -> ModuleType:
    from . import triton_kernels

    return triton_kernels


def forward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    state: Tensor | None,
    normalize: bool,
    eps: float,
    cu_seqlens: Tensor | None = None,
    return_state: bool = True,
    decay: Tensor | None = None,
    scale: float = 1.0,
) -> tuple[Tensor, Tensor, Tensor]:
    """The operator `triton_forward` of `operators.py`."""
    q, k, v, cu_seqlens = _dense(q), _dense(k), _dense(v), _contiguous(cu_seqlens)
    out, inverse = new_rows(q, v), new_inverse(q, normalize)
    final = new_state(k, v, normalize, cu_seqlens, return_state)
    launches = _Launches(q, k, v, normalize, eps, cu_seqlens, decay, scale)
    entering, leaving = launches.states(k, v, _contiguous(state), final)
    launches.chunk_scan("out", q, k, v, out, entering, leaving, inverse)
    return out, final, inverse


def backward(
    grad_out: Tensor,
    grad_state: Tensor | None,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    state: Tensor | None,
    inverse: Tensor,
    normalize: bool,
    eps: float,
    out: Tensor | None = None,
    cu_seqlens: Tensor | None = None,
    decay: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """The operator `triton_backward` of `operators.py`."""
    q, k, v, grad_out = _dense(q), _dense(k), _dense(v), _dense(grad_out)
    cu_seqlens = _contiguous(cu_seqlens)
    *grads, grad_initial = new_gradients(q, k, v, state, normalize, cu_seqlens)
    launches = _Launches(q, k, v, normalize, cu_seqlens=cu_seqlens, decay=decay)
    slope = torch.empty_like(inverse) if normalize else None
    scale = inverse if normalize else None
    sums, ends = (None,) * 4, None
    if decay is not None:
        blocks = _parts(q.shape[-1], launches.columns(q))
        dots, parts = (inverse.new_empty(*q.shape[:2], blocks, q.shape[2]) for _ in range(2))
        size = q.shape[-1] * (v.shape[-1] + normalize)
        kept = inverse.new_empty(q.shape[0] * q.shape[1], q.shape[2] // _KEPT_ROWS, size)
        if grad_state is not None or launches.segments[0] > 1:
            ends = inverse.new_empty(launches.heads, launches.segments[0], size)
        sums = dots, kept, ends, parts
    entering, _ = launches.states(k, v, _contiguous(state), grad_initial.new_empty(0))
    dotted = None if decay is None else q
    launches.chunk_scan("q", grad_out, v, k, grads[0], entering, (ends, 1), scale, slope, out, dotted, sums)
    entering, leaving = launches.states(
        q, grad_out, _contiguous(grad_state), grad_initial, reverse=True, inverse=scale, slope=slope
    )
    dotted = None if decay is None else k
    launches.chunk_scan(
        "k", v, grad_out, q, grads[1], entering, leaving, scale, slope, dotted=dotted, sums=sums
    )
    launches.chunk_scan("v", k, q, grad_out, grads[2], entering, (None, 1), scale)
    grad_decay = new_decay_gradient(q, decay is not None)
    if decay is not None:
        torch.sum(parts, 2, out=grad_decay)
    return *grads, grad_initial, grad_decay


def step(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    state: Tensor,
    normalize: bool,
    eps: float,
    decay: Tensor | None = None,
    scale: float = 1.0,
) -> tuple[Tensor, Tensor]:
    """The operator `triton_step` of `operators.py`; ValueError for arguments that do not fit."""
    check_step(q, k, v, state, decay, normalize)
    import triton.language as tl

    q, k, v, state = _dense(q), _dense(k), _dense(v), state.contiguous()
    (batch, heads, keys), values = k.shape, v.shape[-1]
    out, new_state = v.new_empty(batch, q.shape[1], values), torch.empty_like(state)
    decays = None if decay is None else decay.expand(batch, heads)
    key_block = _block(keys)
    columns = min(_block(values), max(1, _STEP_NUMBERS // key_block))
    rows = [y for x in (q, k, v) for y in (x, x.stride()[:2])]
    _launch(
        q,
        _kernels().step,
        (batch * heads, max(1, _parts(values, columns))),  # z changes even if there are no values
        *(*rows, state, decays, (0, 0) if decays is None else decays.stride(), out, new_state),
        *(heads, q.shape[1] // max(heads, 1), eps, scale),
        KEYS=keys,
        VALUES=values,
        NORMALIZE=normalize,
        KEY_BLOCK=key_block,
        VALUE_BLOCK=columns,
        ACC=tl.float64 if q.dtype == torch.float64 else tl.float32,
    )
    return out, new_state


def _contiguous(x: Tensor | None) -> Tensor | None:
    return None if x is None else x.contiguous()


for _run in (forward, backward, step):
    torch.library.impl(f"{NAMESPACE}::triton_{_run.__name__}", "default", _run)
