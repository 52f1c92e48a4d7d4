"""How many numbers the tensors have that a computation makes or keeps: counted, not timed."""

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from causal_linear_attention import fused


class Made(TorchDispatchMode):
    """The numbers of the tensors that operators give: of `every` one, and of the `new` ones, no views."""

    def __init__(self) -> None:
        super().__init__()
        self.every: list[int] = []
        self.new: list[int] = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        for x in out if isinstance(out, (tuple, list)) else [out]:
            if isinstance(x, torch.Tensor):
                self.every.append(x.numel())
                self.new += [] if x._is_view() else [x.numel()]
        return out


def kept_for_backward(run: Callable[[], object]) -> int:
    """The numbers of all tensors that a forward pass keeps for its backward pass."""
    return sum(x.numel() for x in _kept(run))


def kept_bytes(run: Callable[[], object]) -> int:
    """The bytes of memory in which these tensors are."""
    storages = [x.untyped_storage() for x in _kept(run)]
    return sum({storage.data_ptr(): storage.nbytes() for storage in storages}.values())


def _kept(run: Callable[[], object]) -> list[torch.Tensor]:
    kept = []

    def pack(x):
        kept.append(x)
        return x

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda x: x):
        run()
    return kept


@contextmanager
def without_kernels() -> Iterator[None]:
    """The steps of `causal_linear_attention.fused` by PyTorch's operators."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fused, "runs", lambda x: False)
        yield


class Dispatched(TorchDispatchMode):
    """Counts operators that reach PyTorch's dispatcher, no views or empty tensors: about a GPU's launches."""

    FREE = (torch.ops.aten._unsafe_view.default, torch.ops.aten.new_empty.default)

    def __init__(self) -> None:
        super().__init__()
        self.calls: Counter[str] = Counter()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if not func.is_view and func not in self.FREE:
            self.calls[str(func)] += 1
        return func(*args, **(kwargs or {}))
