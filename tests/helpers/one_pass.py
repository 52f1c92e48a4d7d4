"""One forward and backward pass of a backend's kernels, for compute-sanitizer: `cuda`, or `cpp` to try it."""

import sys

import torch

from causal_linear_attention import causal_linear_attention

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
    print("done")


if __name__ == "__main__":
    main()
