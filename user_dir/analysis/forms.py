"""Attention matrices of the mechanisms whose values do not simply pass through `attend`."""

import math

import torch
import torch.nn.functional as F
from fairseq.modules import MultiheadAttention
from torch import Tensor

from causal_linear_attention import causal_linear_attention

from ..attention.base import no_positions
from ..attention.decaying import DecayingAttention
from ..attention.flash import FlashAttention, FlashQuadAttention
from ..attention.linformer import LinformerAttention
from ..attention.lln import LLNAttention
from ..attention.lln_diag import LLNDiagAttention
from ..attention.longformer import LongformerAttention
from ..attention.parts.block_diagonal import attend_in_blocks
from ..attention.parts.new_tokens import NewTokens
from ..attention.parts.weights import softmax_over_keys
from ..attention.reformer_hashing import HashedAttention
from ..attention.tnn import TnnAttention
from ..attention.transformer_ls_causal import CausalLongShortAttention
from ..attention.transformer_ls_full import FullLongShortAttention
from .matrix import by_columns, explicit


@torch.no_grad()
def lln_diag_parts(
    module: LLNDiagAttention, x: Tensor, padding_mask: Tensor | None = None
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The two matrices of LLN+Diag and their weights: `attend` is `r P_lln v + p P_diag v`.

    Args:
        module: in evaluation mode.
        x: `(N, B, D)`.
        padding_mask: bool `(B, N)`, True at padding.

    Returns:
        P_lln and P_diag, `(B, H, N, N)`; r and p, `(1, H, 1, d)`, both 1/2 for the average.
    """
    q, k = module.heads(module.q_proj(x)), module.heads(module.k_proj(x))

    def diag(values: Tensor) -> Tensor:
        size, weigh = module.block_size, module._weights
        scaled = q * module.head_dim**-0.5
        return attend_in_blocks(scaled, k, values, padding_mask, size=size, causal=module.causal, weigh=weigh)

    half = q.new_full((1, module.num_heads, 1, module.head_dim), 0.5)
    kind = module.options.combination
    r = half if kind == "average" else module.r
    p = {"average": half, "learnable_ratio": 1 - r, "learnable_scale": getattr(module, "p", half)}[kind]
    lln = by_columns(lambda values: LLNAttention.attend(module, q, k, values, padding_mask), q)
    return lln, by_columns(diag, q), r, p


@explicit.register
def _(module: LLNDiagAttention, x: Tensor, padding_mask: Tensor | None, causal: bool) -> Tensor:
    lln, diag, r, p = lln_diag_parts(module, x, padding_mask)
    return r.mean(-1, keepdim=True) * lln + p.mean(-1, keepdim=True) * diag


@explicit.register
def _(module: DecayingAttention, x: Tensor, padding_mask: Tensor | None, causal: bool) -> Tensor:
    q, k, *_ = module.inputs(x, module.at(torch.arange(len(x), device=x.device), x))
    decay = module.log_decay(x)
    return by_columns(lambda values: causal_linear_attention(q, k, values, log_decay=decay), q)


@explicit.register
def _(module: LongformerAttention, x: Tensor, padding_mask: Tensor | None, causal: bool) -> Tensor:
    q, k = module.heads(module.q_proj(x)), module.heads(module.k_proj(x))
    matrix = by_columns(lambda values: module.attend(q, k, values, padding_mask), q)
    first = module.heads(module.q_proj_global(x[:1])) * module.head_dim**-0.5
    scores = first @ module.heads(module.k_proj_global(x)).mT
    matrix[:, :, :1] = softmax_over_keys(scores, padding_mask)
    return matrix


@explicit.register
def _(module: LinformerAttention, x: Tensor, padding_mask: Tensor | None, causal: bool) -> Tensor:
    q = module.heads(module.q_proj(x))
    if module.options.projection == "heads":
        k = module.heads(module.k_proj(x))
        return by_columns(lambda values: module.attend(q, k, values, padding_mask), q)
    real = x if padding_mask is None else x.masked_fill(padding_mask.t().unsqueeze(-1), 0.0)
    slots_k = module.compress_k.weight[:, : len(x)]
    shared = module.options.projection == "shared"
    slots_v = slots_k if shared else module.compress_v.weight[:, : len(x)]
    k = module.heads(module.k_proj(torch.einsum("rn,nbd->rbd", slots_k, real)))
    return softmax_over_keys(q @ k.mT * module.head_dim**-0.5, None) @ slots_v


@explicit.register
def _(module: HashedAttention, x: Tensor, padding_mask: Tensor | None, causal: bool) -> Tensor:
    queries, _ = module.projections(x)
    return by_columns(lambda values: module.attend(queries, values, padding_mask), queries)


@explicit.register
def _(module: FlashQuadAttention, x: Tensor, padding_mask: Tensor | None, causal: bool) -> Tensor:
    _, (q, k) = module._parts(x, padding_mask)
    weights = module._weights(q, k, module._bias(len(x)))
    return (weights.tril() if module.causal else weights)[:, None]


@explicit.register
def _(module: FlashAttention, x: Tensor, padding_mask: Tensor | None, causal: bool) -> Tensor:
    size = module.options.chunk_size
    _, (quad_q, lin_q, quad_k, lin_k) = module._parts(x, padding_mask)
    chunk = torch.arange(len(x), device=x.device) // size
    inside = F.relu(quad_q @ quad_k.mT / size + module._bias(len(x))).square()
    linear = lin_q @ lin_k.mT / size
    same = chunk[:, None] == chunk
    if module.causal:
        inside, linear = inside.tril(), linear.masked_fill(chunk[:, None] <= chunk, 0.0)
    return (inside.masked_fill(~same, 0.0) + linear)[:, None]


@torch.no_grad()
def toeplitz_matrices(module: TnnAttention, length: int) -> Tensor:
    """`c(i - j) decay^|i - j|` of TNN, a matrix a channel, the same for every input: `(E, N, N)`."""
    return _toeplitz(module, _coefficients(module, length).T, length)


@explicit.register
def _(module: TnnAttention, x: Tensor, padding_mask: Tensor | None, causal: bool) -> Tensor:
    size = _coefficients(module, len(x)).abs().mean(1)
    return _toeplitz(module, size, len(x)).expand(x.shape[1], 1, -1, -1).clone()


def _coefficients(module: TnnAttention, length: int) -> Tensor:
    """The coefficients of the distances from `1 - length` to `length - 1`, `(2 length - 1, E)`."""
    device = module.u_proj.weight.device
    return module.toep.coefficients(torch.arange(1 - length, length, device=device))


def _toeplitz(module: TnnAttention, coefficients: Tensor, length: int) -> Tensor:
    place = torch.arange(length, device=coefficients.device)
    matrix = coefficients[..., place[:, None] - place + length - 1]
    return matrix.tril() if module.causal else matrix


@explicit.register
def _(module: FullLongShortAttention, x: Tensor, padding_mask: Tensor | None, causal: bool) -> Tensor:
    q = module.heads(module.W_q(x)) * module.head_dim**-0.5
    k = module.heads(module.dual_ln_l(module.W_k(x)))
    pooling = module._pooling(x, padding_mask)
    pooled_k = module._normed(pooling @ k)
    return by_columns(lambda v: module._attend(q, (k, v), (pooled_k, pooling @ v), padding_mask), q)


@explicit.register
def _(module: CausalLongShortAttention, x: Tensor, padding_mask: Tensor | None, causal: bool) -> Tensor:
    new, state = NewTokens(padding_mask, no_positions(x), len(x)), module._first_state(x)
    q = module.heads(module.proj_query(x)) * module.head_dim**-0.5
    keys, scores = module.proj_key(x), module.dconv_1(x)
    near_k = module.heads(module.dual_ln_win(keys))
    vectors = torch.cat([keys, keys, scores], -1).transpose(0, 1)
    pooled_k = module._pool(vectors, new, state)[0][..., : module.head_dim]
    pooling = _pooling_in_chunks(module, scores)
    pooling = F.pad(pooling, (0, 0, 0, pooled_k.shape[2] - pooling.shape[2]))
    tables = module._tables(state, pooled_k.shape[2])

    def mix(values: Tensor) -> Tensor:
        near = torch.cat([state["recent"], torch.cat([near_k, values], -1)], 2)
        pooled = torch.cat([pooled_k, pooling @ values], -1)
        return module._attend(q, near, pooled, tables, new, state)

    return by_columns(mix, q)


def _pooling_in_chunks(module: CausalLongShortAttention, scores: Tensor) -> Tensor:
    """The weights with which whole chunks are pooled, `(B, H, chunks r, N)`, from scores `(N, B, H r)`."""
    length, size, rank = len(scores), module.chunk, module.rank
    chunks = length // size
    whole = scores[: chunks * size].unflatten(0, (chunks, size)).softmax(1)
    whole = whole.unflatten(-1, (module.num_heads, rank)).permute(2, 3, 0, 4, 1)  # B, H, chunks, r, C
    matrix = whole.new_zeros(*whole.shape[:4], chunks, size)
    own = torch.arange(chunks, device=scores.device)
    matrix[:, :, own, :, own] = whole.movedim(2, 0)
    return F.pad(matrix.flatten(4).flatten(2, 3), (0, length - chunks * size))


@explicit.register
def _(module: MultiheadAttention, x: Tensor, padding_mask: Tensor | None, causal: bool) -> Tensor:
    def heads(y: Tensor) -> Tensor:
        return y.unflatten(2, (module.num_heads, -1)).permute(1, 2, 0, 3)

    q, k = heads(module.q_proj(x)), heads(module.k_proj(x))
    scores = q @ k.mT / math.sqrt(module.head_dim)
    if causal:
        scores = scores + torch.full_like(scores[0, 0], -torch.inf).triu(1)
    return softmax_over_keys(scores, padding_mask)
