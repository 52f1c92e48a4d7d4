"""Statistics of attention during training, logged for every layer (`--log-attention-statistics N`)."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from fairseq.logging import metrics
from torch import Tensor, nn

from ..analysis import entropy, lln_temperature, temperature
from ..analysis.matrix import explicit
from ..attention.base import SelfAttention
from ..attention.lln import LLNAttention
from ..attention.parts.log_normal_scale import Moments
from ..errors import UserError

DIGITS = 4


@dataclass(frozen=True)
class Seen:
    """An attention, its input `x: (N, B, D)` and padding `(B, N)` (True at padding, or None), and its q and k
    `(B, H, N, d)` as they leave their linear maps."""

    attention: SelfAttention
    x: Tensor
    padding_mask: Tensor | None
    q: Tensor
    k: Tensor


Measure = Callable[[Seen], dict[str, Tensor]]


def deviations(seen: Seen) -> dict[str, Tensor]:
    """sigma_q and sigma_k: the standard deviations of q and k over heads, channels and real positions."""
    sigma_q, sigma_k = Moments.of(seen.q, seen.k, seen.padding_mask).sigma()
    return {"sigma_q": sigma_q, "sigma_k": sigma_k}


def exponents(seen: Seen) -> dict[str, Tensor]:
    """alpha and beta of LLN attention on this batch; nothing for another mechanism."""
    if not isinstance(seen.attention, LLNAttention):
        return {}
    scale = seen.attention.scale
    alpha, beta = scale.matched(
        Moments.of(seen.q, seen.k, seen.padding_mask if scale.running else None).sigma()
    )
    return {"alpha": alpha, "beta": beta}


def concentration(seen: Seen) -> dict[str, Tensor]:
    """The temperature and the entropy in bits of the batch's first sequence, as means over heads.

    The temperature is that of the scores `q . k / sqrt(d)` of visible pairs, for LLN that of the moment
    matching, if it is defined. LLN's matrix is computed as in evaluation. O(N^2).
    """
    attention, padding_mask = seen.attention, None if seen.padding_mask is None else seen.padding_mask[:1]
    length = len(seen.x) if padding_mask is None else int((~padding_mask).sum())
    if length < 2:
        return {}
    training = attention.training
    attention.eval()
    matrix = explicit(attention, seen.x[:length, :1], None, attention.causal)
    attention.train(training)
    tau = _temperature(seen, length)
    return {"entropy": entropy(matrix).mean(), **({"tau": tau} if tau.isfinite() else {})}


def _temperature(seen: Seen, length: int) -> Tensor:
    if isinstance(seen.attention, LLNAttention):
        found = {key: value.item() for key, value in (deviations(seen) | exponents(seen)).items()}
        tau = lln_temperature(**found, a=seen.attention.scale.a, b=seen.attention.scale.b)
        return torch.tensor(tau, device=seen.q.device)
    q, k = (x[:1, :, :length].double() for x in (seen.q, seen.k))
    scores = q @ k.mT * q.shape[-1] ** -0.5
    visible = torch.ones(length, length, dtype=torch.bool, device=q.device)
    return temperature(scores, visible.tril() if seen.attention.causal else visible).mean()


# Each gives named tensors of one element.
MEASURES: tuple[Measure, ...] = (deviations, exponents, concentration)


class AttentionStatistics(nn.Module):
    """Takes `MEASURES` of every layer in each `every`-th update and logs them as `NAME/layerI`, I from 0.

    fairseq writes them with its other figures: to TensorBoard and the log, at each `--log-interval`, as the
    mean of the measurements since the last one (null in the JSON log if there were none), both sequences of a
    pair included. They are those of the first worker's batches. A measurement computes q and k a second time,
    and the attention matrix of one sequence; other updates cost nothing.

    The module has neither parameters nor buffers. fairseq tells it the number of updates before each batch.

    Args:
        model: the whole model, whose forward pass ends a measurement.
        layers: its layers; those whose mechanism is not a `SelfAttention` (gated units, attentions with
            decays, Reformer and Transformer-LS) are left out. Mechanisms in parallel are numbered I.0, I.1, …
        every: updates from one measurement to the next.

    Raises:
        UserError: when no layer is left.
    """

    def __init__(self, model: nn.Module, layers: nn.ModuleList, every: int) -> None:
        super().__init__()
        self.every, self.due = every, False
        self.values: list[tuple[str, Tensor]] = []
        for number, layer in enumerate(nn.ModuleList.__iter__(layers)):
            found = [part for part in layer.modules() if isinstance(part, SelfAttention)]
            for i, attention in enumerate(found):
                name = f"layer{number}.{i}" if len(found) > 1 else f"layer{number}"
                attention.register_forward_pre_hook(self._measuring(name), with_kwargs=True)
        if not any(isinstance(part, SelfAttention) for part in layers.modules()):
            raise UserError(
                "--log-attention-statistics cannot measure gated units, attentions with decays, Reformer and "
                "Transformer-LS, and the model has no other layers; leave the option out"
            )
        model.register_forward_hook(lambda *unused: self._log())

    def set_num_updates(self, num_updates: int) -> None:
        """Called by fairseq before each batch with the number of updates done."""
        self.due = (num_updates + 1) % self.every == 0

    def _measuring(self, name: str) -> Callable:
        @torch.no_grad()
        def measure(attention: SelfAttention, args: tuple, kwargs: dict) -> None:
            if not (self.due and attention.training):
                return
            x, padding_mask = args[0], kwargs.get("key_padding_mask")
            q, k = attention.heads(attention.q_proj(x)), attention.heads(attention.k_proj(x))
            seen = Seen(attention, x, padding_mask, q, k)
            for take in MEASURES:
                for key, value in take(seen).items():
                    self.values.append((f"{key}/{name}", value))

        return measure

    def _log(self) -> None:
        """At the end of the forward pass, so that a layer that is recomputed later is measured once."""
        if not self.values:
            return
        numbers = torch.stack([value.float() for _, value in self.values]).tolist()
        for (key, _), number in zip(self.values, numbers, strict=True):
            metrics.log_scalar(key, number, priority=1000, round=DIGITS)
        self.values.clear()
        self.due = False


def log_attention_statistics(model: nn.Module, layers: nn.ModuleList, every: int) -> None:
    """Make `model` log statistics of its `layers` in each `every`-th update; 0 for never.

    Raises UserError for a negative number, or when no layer can be measured.
    """
    if every < 0:
        raise UserError(
            f"--log-attention-statistics is {every}; it must be a number of updates, or 0 for never"
        )
    if every:
        model.attention_statistics = AttentionStatistics(model, layers, every)
