"""The state of a module between decoding steps."""

from typing import Any

import torch
from torch import Tensor

State = dict[str, Any]


class DecodingState:
    """Keeps one dictionary a module inside fairseq's `incremental_state`.

    Tensors in it have the batch first, so that beam search can reorder them; other values are kept as they
    are.
    """

    def _key(self) -> str:
        return f"{type(self).__name__}.{id(self)}"

    def get_state(self, incremental_state: dict[str, State]) -> State | None:
        """The dictionary stored last, None before the first step.

        Outside of inference mode tensors that were made in it are copied: they can neither be written to nor
        enter a derivative.
        """
        state = incremental_state.get(self._key())
        if state is None or torch.is_inference_mode_enabled() or not any(map(_of_inference, state.values())):
            return state
        return {name: _out_of_inference(x) for name, x in state.items()}

    def set_state(self, incremental_state: dict[str, State], state: State) -> None:
        """Store the dictionary for the next step."""
        incremental_state[self._key()] = state

    def reorder_incremental_state(self, incremental_state: dict[str, State], new_order: Tensor) -> None:
        """Row i becomes the former row `new_order[i]` (beam search; rows may repeat or vanish)."""
        state = self.get_state(incremental_state)
        if state is not None:
            self.set_state(
                incremental_state,
                {
                    name: x.index_select(0, new_order) if isinstance(x, Tensor) else x
                    for name, x in state.items()
                },
            )


def _of_inference(x: Any) -> bool:
    return any(map(_of_inference, x)) if isinstance(x, tuple) else isinstance(x, Tensor) and x.is_inference()


def _out_of_inference(x: Any) -> Any:
    if isinstance(x, tuple):
        return tuple(map(_out_of_inference, x))
    return x.clone() if _of_inference(x) else x


def in_dtype(state: State, dtype: torch.dtype, *names: str) -> State:
    """`state` with the tensors `names` in `dtype`: autocast may not have been on in all steps alike."""
    if all(state[name].dtype == dtype for name in names):
        return state
    return {**state, **{name: state[name].to(dtype) for name in names}}


def state_bytes(incremental_state: dict[str, State]) -> int:
    """Bytes of all tensors in fairseq's `incremental_state`."""
    tensors = [x for entry in incremental_state.values() for x in entry.values() if isinstance(x, Tensor)]
    return sum(x.numel() * x.element_size() for x in tensors)


def append_to_cache(cache: Tensor, new: Tensor, length: int, dim: int) -> Tensor:
    """`cache` with `new` written behind its first `length` entries, doubled when it is full.

    Written in place where no derivative is taken, else a copy.
    """
    needed = length + new.shape[dim]
    if needed > cache.shape[dim]:
        shape = list(cache.shape)
        shape[dim] = max(needed, 2 * cache.shape[dim]) - length
        tail = new.new_zeros(shape)
        cache = torch.cat([cache.narrow(dim, 0, length), tail], dim)
    if torch.is_grad_enabled():
        return cache.slice_scatter(new.to(cache.dtype), dim, length, needed)
    cache.narrow(dim, length, new.shape[dim]).copy_(new)
    return cache


def write_to_cache(cache: Tensor, dim: int, index: Tensor, new: Tensor) -> Tensor:
    """`cache` with `new` at `index`, as in `scatter`: in place where no derivative is taken, else a copy."""
    write = torch.Tensor.scatter if torch.is_grad_enabled() else torch.Tensor.scatter_
    return write(cache, dim, index, new)
