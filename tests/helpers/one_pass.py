"""One forward and backward pass of a backend's kernels, for compute-sanitizer: `cuda`, or `cpp` to try it."""

import sys
from types import ModuleType

import torch

from causal_linear_attention import causal_linear_attention, decoding, fused, triton_backend, triton_fused

# One head in several segments, which pass their states on, and whole heads whose rows are not aligned.
SHAPES = [(1, 1, 1300, 64, 64), (2, 40, 70, 20, 33)]


def main() -> None:
    backend = sys.argv[1]
    device = {"cuda": "cuda", "cpp": "cpu"}[backend]
    for batch, heads, length, dim, width in SHAPES:
        for dtype in (torch.float32, torch.bfloat16, torch.float16):
            for normalize in (False, True):
                q, k, v = (
                    torch.rand(batch, heads, length, x, device=device).to(dtype).requires_grad_()
                    for x in (dim, dim, width)
                )
                for decay in (None, -torch.rand(batch, heads, length, device=device)):
                    leaves = (q, k, v) if decay is None else (q, k, v, decay.requires_grad_())
                    out = causal_linear_attention(
                        q, k, v, log_decay=decay, normalize=normalize, backend=backend
                    )
                    grads = torch.autograd.grad(out.float().sum(), leaves)
                    assert all(x.isfinite().all() for x in (out, *grads))
        steps_of_a_layer(device, batch, heads, length, dim)
    if device == "cuda" and not triton_backend.reason(torch.device(device)):
        steps_of_a_layer(device, *SHAPES[-1][:4], triton_fused, (torch.bfloat16,))
        q, v, state = (torch.rand(2, 3, *x, device=device) for x in [(20,), (33,), (20, 34)])
        assert all(x.isfinite().all() for x in triton_backend.step(q, q, v, state, True, 1e-6))
    decoding_steps(device)
    print("done")


def steps_of_a_layer(
    device: str,
    batch: int,
    heads: int,
    length: int,
    dim: int,
    steps: ModuleType = fused,
    dtypes: tuple[torch.dtype, ...] = (torch.float32, torch.bfloat16, torch.float16),
) -> None:
    """Run the steps of `causal_linear_attention.fused` with their derivatives, and RMSNorm."""
    seed, direction, theta = (
        fused.new_seed(device),
        torch.rand(dim, device=device),
        torch.rand(dim // 2, device=device),
    )
    for dtype in dtypes:
        x, y, grad = torch.rand(3, length, batch, dim, device=device).to(dtype).unbind(0)
        _, out, root = steps.residual(x, y, seed, 0.1, 1e-8, True, True)
        found = [*steps.residual_backward(grad, grad, out, root, seed, 0.1, 1e-8)]
        inputs = torch.rand(length, 2 * dim + 3, device=device).to(dtype)[:, : 2 * dim]
        found += [steps.gated(inputs), *steps.gated_backward(grad[:, 0], inputs)]
        qkv = torch.rand(length, batch, 3 * heads * dim, device=device).to(dtype)
        rotation = direction, theta, heads, fused.MAPS["elu"], 0.5
        q, k = steps.features(qkv, *rotation)
        found += steps.features_backward(q, k, q, qkv, *rotation)
        for softmax in (False, True):
            options = (*rotation[:3], 16, 0.5, not softmax, softmax, None, seed, 0.1)
            out = steps.blocks(qkv, *options)
            found += [
                out,
                *steps.blocks_backward(torch.rand_like(out) / 16, qkv, *options),
            ]  # float16's range
        if device == "cuda" and steps is fused:
            out, root = decoding.rms_norm_forward(x, 1e-8)
            found.append(decoding.rms_norm_backward(grad, out, root, 1e-8))
        assert all(one.isfinite().all() for one in found)


def decoding_steps(device: str, batch: int = 3, heads: int = 5, dim: int = 33, size: int = 70) -> None:
    """One token of each attention of TransNormer, whose kernels take float32."""
    q, k, v = torch.rand(3, batch, heads, 1, dim, device=device).unbind(0)
    turn = torch.rand(dim, device=device), torch.rand(dim // 2, device=device, dtype=torch.float64)
    positions = torch.tensor([0, 5, size - 1], device=device)
    keys, values = torch.rand(2, batch, heads, size, dim, device=device).unbind(0)
    with torch.no_grad():
        found = [
            *decoding.norm_step(
                q, k, v, *turn, positions, torch.rand(batch, heads, dim, dim, device=device), True
            )
        ]
        for softmax in (False, True):
            found.append(decoding.block_step(q, k, v, *turn, 0.5, positions, keys, values, softmax))
        found.append(decoding.rms_norm(v, 1e-8))
    assert all(one.isfinite().all() for one in found)


if __name__ == "__main__":
    main()
