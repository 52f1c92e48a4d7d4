"""Compile the steps between matrix products for GPUs that are not there.

Arguments: `capability:dtype:heads:dim:size ...`.

Prints one JSON object per kernel, as triton_compiled.py does, and last a list: the kernels of which another
batch or length needs another compilation.
"""

import json
import sys
from unittest import mock

import torch

from causal_linear_attention import fused, triton_fused, triton_fused_kernels
from tests.helpers.triton_compiled import compiled, specialisation


def launches(
    dtype: torch.dtype, heads: int, dim: int, size: int, length: int, batch: int
) -> dict[str, tuple]:
    """Kernel, arguments and constants of the launches of forward and backward, by title."""
    found: dict[str, tuple] = {}

    def record(name, like, grid, *given, **constants):
        title = f"{name}, softmax" if constants.get("SOFTMAX") else name
        found.setdefault(title, (getattr(triton_fused_kernels, name), given, constants))

    width = heads * dim
    x, seed = torch.zeros(length, batch, width, dtype=dtype), torch.zeros((), dtype=torch.int64)
    qkv, inputs = (
        torch.zeros(length, batch, 3 * width, dtype=dtype),
        torch.zeros(length, 2 * width, dtype=dtype),
    )
    head, padding = x.new_zeros(batch, heads, length, dim), torch.zeros(batch, length, dtype=torch.bool)
    rotation = torch.zeros(dim), torch.zeros(dim // 2), heads
    with mock.patch.object(triton_fused, "_launch", record):
        _, out, root = triton_fused.residual(x, x, seed, 0.1, 1e-8, True, True)
        triton_fused.residual_backward(x, x, out, root, seed, 0.1, 1e-8)
        triton_fused.gated(inputs)
        triton_fused.gated_backward(inputs[:, :width], inputs)
        triton_fused.features(qkv, *rotation, fused.MAPS["elu"], 0.5)
        triton_fused.features_backward(head, head, head, qkv, *rotation, fused.MAPS["elu"], 0.5)
        for softmax in (False, True):
            options = *rotation, size, 0.5, not softmax, softmax, padding, seed, 0.1
            triton_fused.blocks(qkv, *options)
            triton_fused.blocks_backward(x, qkv, *options)
    return found


def main() -> None:
    for case in sys.argv[1:]:
        capability, dtype, *sizes = case.split(":")
        kind = getattr(torch, dtype), *map(int, sizes)
        first = launches(*kind, 70, 3)
        for title, launch in first.items():
            found = {"case": case, "kernel": title, **compiled(*launch, int(capability))}
            print(json.dumps(found), flush=True)
    others = [launches(*kind, *shape) for shape in ((71, 3), (1, 16), (64, 1))]
    changed = [x for x in first if any(specialisation(*o[x]) != specialisation(*first[x]) for o in others)]
    print(json.dumps(changed))


if __name__ == "__main__":
    main()
