"""Compile the kernels of the loss for GPUs that are not there: `capability:dtype:D ...`.

Prints one JSON object per kernel, as triton_compiled.py does, and last a list: the kernels of which another
batch or another number of words needs another compilation.
"""

import json
import sys
from dataclasses import dataclass
from typing import Any
from unittest import mock

import torch

from tests.helpers.triton_compiled import compiled, specialisation
from user_dir.modules import fused_loss, fused_loss_kernels

NAMES = ("sums", "errors")


@dataclass
class Recorded:
    """A kernel whose first launch is noted instead."""

    name: str
    launches: dict[str, tuple]

    def __getitem__(self, grid: tuple[int, int]) -> Any:
        kernel = getattr(fused_loss_kernels, self.name)
        return lambda *given, **constants: self.launches.setdefault(self.name, (kernel, given, constants))


def launches(capability: int, dtype: torch.dtype, width: int, rows: int, words: int) -> dict[str, tuple]:
    """Kernel, arguments and constants of the launches of forward and backward, by name."""
    found: dict[str, tuple] = {}
    recorded = mock.Mock(**{name: Recorded(name, found) for name in NAMES})
    x, weight = (torch.zeros(n, width, dtype=dtype, requires_grad=True) for n in (rows, words))
    fused_loss.tiles.cache_clear()
    with (
        mock.patch.object(torch.cuda, "get_device_capability", lambda device: divmod(capability, 10)),
        mock.patch.object(fused_loss, "product", lambda a, b: torch.zeros(a.shape[0], b.shape[1])),
        mock.patch.object(fused_loss, "_kernels", lambda: recorded),
    ):
        target = torch.zeros(rows, dtype=torch.int64)
        fused_loss.losses(x, weight, target, None, None, 512).sum().backward()
    return found


def main() -> None:
    for case in sys.argv[1:]:
        capability, dtype, width = case.split(":")
        kind = int(capability), getattr(torch, dtype), int(width)
        first = launches(*kind, 512, 1000)
        for name, launch in first.items():
            found = {"case": case, "kernel": name, **compiled(*launch, int(capability))}
            print(json.dumps(found), flush=True)
    others = [launches(*kind, *size) for size in ((513, 1000), (16, 1001), (1001, 8))]
    changed = [
        name
        for name in NAMES
        if any(specialisation(*other[name]) != specialisation(*first[name]) for other in others)
    ]
    print(json.dumps(changed))


if __name__ == "__main__":
    main()
