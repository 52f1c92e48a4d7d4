"""The steps of a TransNormer layer between its matrix products, each one call of a kernel.

With PyTorch's operators a step takes five to fifteen of them, its derivative as many again, and small ones
take longer to launch than to compute. `user_dir/modules/` and `user_dir/attention/parts/joined.py` define the
derivatives, and compute the same without kernels. csrc/fused.h has the formulas.

    residual           x + dropout(y) and its RMSNorm
    gated              silu(gate) * value of gates and values side by side
    features           queries and keys through a feature map and LRPE
    blocks             attention inside blocks on the diagonal

The backward pass draws dropout again from its seed, which is all that is kept of it.
"""

from collections import defaultdict
from functools import cache

import torch
from torch import Tensor
from torch.library import Library, register_fake

from . import decoding, extension, fused_outputs, operators, triton_backend, triton_fused

_ROTATION = "Tensor? direction, Tensor? theta, int heads"
_BLOCKS = f"Tensor qkv, {_ROTATION}, int size, float scale, bool causal, bool softmax, Tensor? padding"
_SCHEMAS = (
    "residual(Tensor x, Tensor? y, Tensor? seed, float p, float eps, bool norm, bool keep) "
    "-> (Tensor sum, Tensor out, Tensor root)",
    "residual_backward(Tensor? grad_sum, Tensor? grad_out, Tensor out, Tensor root, Tensor? seed, float p, "
    "float eps) -> (Tensor grad_x, Tensor grad_y)",
    "gated(Tensor inputs) -> Tensor",
    "gated_backward(Tensor grad, Tensor inputs) -> (Tensor grad_inputs, Tensor out)",
    f"features(Tensor qkv, {_ROTATION}, int map, float scale) -> (Tensor q, Tensor k)",
    f"features_backward(Tensor grad_q, Tensor grad_k, Tensor grad_v, Tensor qkv, {_ROTATION}, int map, "
    "float scale) -> (Tensor grad_qkv, Tensor grad_theta)",
    f"blocks({_BLOCKS}, Tensor? seed, float p) -> Tensor",
    f"blocks_backward(Tensor grad, {_BLOCKS}, Tensor? seed, float p) -> (Tensor grad_qkv, Tensor grad_theta)",
)
_LIBRARY = Library(operators.NAMESPACE, "FRAGMENT")
for _schema in _SCHEMAS:
    _name = _schema.partition("(")[0]
    _LIBRARY.define(_schema, tags=torch.Tag.pt2_compliant_tag)
    register_fake(f"{operators.NAMESPACE}::{_name}", getattr(fused_outputs, _name))
    if not extension.loaded("cuda"):
        _LIBRARY.impl(_name, getattr(triton_fused, _name), "CUDA")

residual = torch.ops.causal_linear_attention.residual.default
"""`(x, y, seed, p, eps, norm, keep) -> (sum, out, root)`: sum = x + dropout(y), out = sum / (root + eps).

x and y have any shape; without y the sum is x and is not returned. root `(rows,)` are the root mean squares
over the last dimension. Without a seed (see `new_seed`) nothing is dropped. The sum without `keep`, and out
and root without `norm`, are empty.
"""

residual_backward = torch.ops.causal_linear_attention.residual_backward.default
"""`(grad_sum, grad_out, out, root, seed, p, eps) -> (grad_x, grad_y)`.

Without a seed grad_y is empty, since it equals grad_x.
"""

gated = torch.ops.causal_linear_attention.gated.default
"""`(rows, 2 width) -> (rows, width)`: `silu(inputs[:, :width]) * inputs[:, width:]`."""

gated_backward = torch.ops.causal_linear_attention.gated_backward.default
"""`(grad, inputs) -> (grad_inputs, out)`; out is what `gated` returned."""

MAPS = {None: 0, "elu": 1, "1+elu": 2}

features = torch.ops.causal_linear_attention.features.default
"""`(qkv, direction, theta, heads, map, scale) -> (q, k)`, both `(B, H, N, d)`.

qkv `(N, B, 3 H d)`: queries, keys and values; map of `MAPS`; direction `(d,)`, theta `(d // 2,)` and scale of
LRPE, without the first two scale alone.
"""

features_backward = torch.ops.causal_linear_attention.features_backward.default
"""`(grad_q, grad_k, grad_v, ...) -> (grad_qkv, grad_theta)`.

grad_theta is float32 at least, `(d // 2,)`; on a GPU `(parts, d // 2)`, which add up to it.
"""

blocks = torch.ops.causal_linear_attention.blocks.default
"""`(qkv, direction, theta, heads, size, scale, causal, softmax, padding, seed, p) -> (N, B, H d)`.

As for `features`; weights in blocks of `size` positions are softmax or ReLU of the scores, dropped out with a
seed; padding `(B, N)`, True at positions that are not keys.
"""

blocks_backward = torch.ops.causal_linear_attention.blocks_backward.default
"""`(grad, ...) -> (grad_qkv, grad_theta)`, grad_theta as of `features_backward`."""

LARGEST_BLOCK = 512
"""Positions of a block for which `blocks` is meant on a CPU: its weights stay in the caches."""


def runs(x: Tensor) -> bool:
    """Whether the operators run for inputs like x, of its device and type; for `blocks` see `runs_blocks`."""
    return x.dtype in _DTYPES[x.device.type] and (decoding.compiled(x) or on_triton(x))


_HALVES = (torch.bfloat16, torch.float16)
_DTYPES = defaultdict(tuple, cpu=(torch.float32, torch.float64, *_HALVES), cuda=(torch.float32, *_HALVES))


def on_triton(x: Tensor) -> bool:
    """Whether Triton computes the operators for x: on a GPU, where the CUDA kernels were not built."""
    if not x.is_cuda or extension.loaded("cuda") or decoding.seen_into():
        return False
    return not triton_backend.reason(x.device)


def runs_blocks(x: Tensor, size: int, dim: int) -> bool:
    """Whether `blocks` runs for blocks of `size` positions and heads of `dim` columns, as `runs`.

    A GPU holds a block in shared memory or registers: PyTorch computes those that are too large.
    """
    if not runs(x):
        return False
    if x.is_cpu:
        return size <= LARGEST_BLOCK
    if on_triton(x):
        return max(size, dim) <= triton_fused.LARGEST_BLOCK
    return blocks_bytes(size, dim) <= _shared_bytes(x.device)


def blocks_bytes(size: int, dim: int) -> int:
    """Shared memory that `blocks_backward` asks for; csrc/cuda/blocks.cu follows the same rule."""
    numbers = 2 * size * (dim | 1) + 2 * size * size + _WARPS * (2 * _ROWS_OF_WARP * dim + dim // 2)
    return -(-4 * numbers // 128) * 128


_WARPS, _ROWS_OF_WARP = 8, 4


@cache
def _shared_bytes(device: torch.device) -> int:
    return torch.cuda.get_device_properties(device).shared_memory_per_block_optin


def new_seed(device: torch.device) -> Tensor:
    """A seed of dropout, drawn by PyTorch's generator of the device."""
    return torch.randint(-(2**63), 2**63 - 1, (), device=device)


_MASK = 0xFFFFFFFF


def dropout_factors(seed: Tensor, p: float, rows: int, width: int, dtype: torch.dtype) -> Tensor:
    """The factors of `(rows, width)` numbers in the kernels: 0 or 1 / (1 - p). Philox4x32 with 7 rounds."""
    number, device = int(seed), seed.device
    column = torch.arange(width, device=device)
    counters = column // 64 * 16 + column % 16
    row = torch.arange(rows, device=device)[:, None].expand(-1, width)
    words = [counters.expand(rows, -1), row & _MASK, row >> 32, torch.zeros_like(row)]
    keys = [number & _MASK, number >> 32 & _MASK]
    for _ in range(7):
        first, second = _product(words[0], 0xD2511F53), _product(words[2], 0xCD9E8D57)
        words = [second[0] ^ words[1] ^ keys[0], second[1], first[0] ^ words[3] ^ keys[1], first[1]]
        keys = [(keys[0] + 0x9E3779B9) & _MASK, (keys[1] + 0xBB67AE85) & _MASK]
    chosen = torch.stack(words).gather(0, (column // 16 % 4).expand(1, rows, -1))[0]
    return (chosen >= min(round(p * 2**32), _MASK)).to(dtype) / (1 - p)


def _product(x: Tensor, factor: int) -> tuple[Tensor, Tensor]:
    """The upper and the lower 32 bits of x times the factor, both below 2^32."""
    low, high = x * (factor & 0xFFFF), x * (factor >> 16)
    middle = high + (low >> 16)
    return middle >> 16, (middle & 0xFFFF) << 16 | low & 0xFFFF
