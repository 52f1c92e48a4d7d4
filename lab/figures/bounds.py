"""Experiment 2 of TransNormer's bounds: gradients by the scores of a trained model (`figures bounds`)."""

from argparse import Namespace
from collections.abc import Iterator
from contextlib import contextmanager

import torch
import torch.nn.functional as F
from torch import Tensor

from lab.errors import UserError
from lab.figures.figure import Content, Figure, chosen, write_once
from lab.figures.measures import queries_and_keys, scaled_scores
from lab.figures.models import (
    about,
    inputs,
    is_masked_lm,
    load,
    mark_of,
    method_of,
    model_label,
    open_split,
    run_name,
    sequences,
    training_of,
)
from lab.run.checkpoint import Checkpoint
from lab.verdicts import judge_bound
from user_dir.analysis import AttentionInput, attention_matrix
from user_dir.analysis.capture import attentions
from user_dir.analysis.gradients import (
    linear_score_gradients,
    norm_bound,
    softmax_bound,
    softmax_score_gradients,
)
from user_dir.attention.base import SelfAttention
from user_dir.attention.elu import EluAttention
from user_dir.attention.lln import LLNAttention
from user_dir.attention.lln_diag import LLNDiagAttention
from user_dir.attention.norm import NormAttention
from user_dir.attention.softmax import SoftmaxAttention


class Recorded:
    """The values of an attention, its mixed values and its output before the output map, with gradients."""

    values: Tensor
    mixed: Tensor
    finished: Tensor


def run_bounds(options: Namespace) -> None:
    """One figure of the checkpoint."""
    data = open_split(options, [options.checkpoint])
    trained = load(options.checkpoint.absolute(), data)
    settings = chosen(options, "split", "sequences", "length")
    settings |= {"corpus": mark_of(data), "checkpoint": about(trained)}
    tokens = sequences(trained, data, options)
    write_once(
        options, run_name(options.checkpoint.absolute().parent), settings, lambda: _figure(trained, tokens)
    )


@contextmanager
def recording(attention: SelfAttention) -> Iterator[Recorded]:
    """While inside, forward passes of `attention` keep what its bounds need."""
    found, attend, finish = Recorded(), attention.attend, attention.finish

    def keep_attend(q: Tensor, k: Tensor, v: Tensor, padding: Tensor | None) -> Tensor:
        found.values, found.mixed = v.detach(), attend(q, k, v, padding)
        found.mixed.retain_grad()
        return found.mixed

    def keep_finish(x: Tensor) -> Tensor:
        found.finished = finish(x)
        found.finished.retain_grad()
        return found.finished

    attention.attend, attention.finish = keep_attend, keep_finish
    try:
        yield found
    finally:
        del attention.attend, attention.finish


def _figure(trained: Checkpoint, tokens: Tensor) -> Content:
    found = _measured(trained, tokens)
    layers = {name: int(name.removeprefix("layer").partition(".")[0]) + 1 for name in found}
    bounded = {name: one for name, one in found.items() if one["bound"] is not None}
    figure = Figure(f"Gradients by the scores, {model_label(trained)}", training=training_of(trained))
    panel = figure.lines("Largest gradient by a score", "layer", "|∂L/∂s|", y="log")
    largest = [one["largest"] for one in found.values()]
    panel.curve("|∂L/∂s|", layers.values(), largest, method_of(trained), style="o-")
    if bounded:
        x = [layers[name] for name in bounded]
        panel.curve("bound", x, [one["bound"] for one in bounded.values()], style="o--")
    for name, one in bounded.items():
        figure.claim(
            f"layer {layers[name]}: |∂L/∂s| ≤ bound",
            f"at most {one['bound']:.3g}",
            judge_bound(one["largest"], one["bound"]),
            f"{one['largest']:.3g}",
        )
    return figure.record(
        f"{model_label(trained)}, {len(tokens)} sequences of {tokens.shape[1]} tokens; the loss is the "
        "mean over tokens. Bounds: c1 c2/2 for softmax, c1 c2/1e-8 for NormAttention with c1 behind "
        "RMSNorm; linear attention divided by its sum has none.",
        layers=found,
    )


def _measured(trained: Checkpoint, tokens: Tensor) -> dict[str, dict[str, float | None]]:
    """The result of `_layer` for each layer; UserError if no layer has gradients in closed form."""
    found = {}
    for given in inputs(trained.model, tokens):
        part = attentions(trained.model)[given.name]
        if not isinstance(part, SoftmaxAttention | NormAttention | EluAttention | LLNAttention) or isinstance(
            part, LLNDiagAttention
        ):
            continue
        with recording(part) as recorded:
            trained.model.zero_grad()
            _loss(trained, tokens).backward()
        found[given.name] = _layer(given, recorded)
    if not found:
        raise UserError(
            f"{trained.path} has no layer of softmax, norm, elu or lln attention, whose gradients have "
            "closed forms"
        )
    return found


def _loss(trained: Checkpoint, tokens: Tensor) -> Tensor:
    """The mean cross-entropy: of all tokens of an encoder, of the next ones of a language model."""
    logits = trained.model(tokens)[0].float()
    if is_masked_lm(trained):
        return F.cross_entropy(logits.flatten(0, 1), tokens.flatten())
    return F.cross_entropy(logits[:, :-1].flatten(0, 1), tokens[:, 1:].flatten())


def _layer(given: AttentionInput, recorded: Recorded) -> dict[str, float | None]:
    """The largest gradient by a score, c1, c2, the bound (None: there is none) and the smallest score."""
    gradient, values = recorded.mixed.grad.double(), recorded.values.double()
    products = gradient @ values.mT
    c1, c2 = gradient.norm(dim=-1).max().item(), values.norm(dim=-1).max().item()
    visible = torch.ones(products.shape[-2:], dtype=torch.bool)
    visible = visible.tril() if given.causal else visible
    bound = None
    if isinstance(given.module, SoftmaxAttention):
        weights = attention_matrix(given.module, given.x)
        found, bound = softmax_score_gradients(weights, products), softmax_bound(c1, c2)
        scores = scaled_scores(given)
    else:
        scores = _features_product(given)
        if isinstance(given.module, NormAttention):
            found = products
            c1 = recorded.finished.grad.double().norm(dim=-1).max().item()
            bound = norm_bound(c1, c2, given.module.norm.eps, inside=False)
        else:
            scores = scores * visible
            total = scores.sum(-1, keepdim=True)
            normalized = isinstance(given.module, LLNAttention) or given.module.normalize
            found = linear_score_gradients(scores / total, products, total) if normalized else products
    return {
        "largest": found[..., visible].abs().max().item(),
        "c1": c1,
        "c2": c2,
        "bound": bound,
        "smallest_score": scores[..., visible].abs().min().item(),
    }


def _features_product(given: AttentionInput) -> Tensor:
    """The scores of linear attention: products of the features of q and k."""
    q, k = queries_and_keys(given)
    module = given.module
    if isinstance(module, LLNAttention):
        alpha, beta = module.scale.average()
        return (alpha * q).exp() @ (beta * k).exp().mT
    with torch.no_grad():
        phi_q, phi_k = module.features(q, k, None)
    return phi_q @ phi_k.mT
