"""Whole models against their formulas, written once more: where norms, gates, sums and pooling are."""

import math
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.helpers import lm, roberta
from tests.helpers.build import build_model
from tests.helpers.images import SMALL_VIT, build_vit
from tests.helpers.lra import SHORT, SMALL, lra_task
from user_dir.attention.diag import DiagAttention
from user_dir.tasks.image_data import ImageShape

LENGTHS = [37, 16, 1]
BLOCK = 8


def perturbed(model: nn.Module) -> nn.Module:
    """In float64, also with biases and norms other than those that training starts from."""
    for name, parameter in model.named_parameters():
        if parameter.requires_grad and not name.endswith("urpe.theta"):
            parameter.data += 0.2 * torch.randn_like(parameter)
    return model.double()


def rms_norm(x: Tensor) -> Tensor:
    return x / (x.square().mean(-1, keepdim=True).sqrt() + 1e-8)


def layer_norm(norm: nn.Module, x: Tensor) -> Tensor:
    x = x - x.mean(-1, keepdim=True)
    return x / (x.square().mean(-1, keepdim=True) + 1e-5).sqrt() * norm.weight + norm.bias


def batch_norm(norm: nn.Module, rows: list[Tensor]) -> list[Tensor]:
    """Statistics of all real positions."""
    x = torch.cat(rows)
    x = (x - x.mean(0)) / (x.var(0, correction=0) + 1e-5).sqrt() * norm.weight + norm.bias
    return list(x.split([len(row) for row in rows]))


def linear(layer: nn.Module, x: Tensor) -> Tensor:
    return x @ layer.weight.T + layer.bias


def glu(layer: nn.Module, x: Tensor) -> Tensor:
    gate = linear(layer.l1, x)
    return linear(layer.l3, gate * torch.sigmoid(gate) * linear(layer.l2, x))


def ffn(layer: nn.Module, x: Tensor) -> Tensor:
    inner = linear(layer.fc1, x)
    return linear(layer.fc2, inner * (1 + torch.erf(inner / math.sqrt(2))) / 2)


def heads(attention: nn.Module, x: Tensor) -> list[Tensor]:
    """q, k and v, `(h, n, d)` each."""
    maps = (attention.q_proj, attention.k_proj, attention.v_proj)
    return [linear(one, x).unflatten(-1, (attention.num_heads, -1)).transpose(0, 1) for one in maps]


def joined(weights: Tensor, v: Tensor) -> Tensor:
    return (weights @ v).transpose(0, 1).flatten(1)


def softmax(attention: nn.Module, x: Tensor) -> Tensor:
    q, k, v = heads(attention, x)
    return linear(attention.out_proj, joined((q @ k.mT * q.shape[-1] ** -0.5).softmax(-1), v))


def transnormer(attention: nn.Module, x: Tensor) -> Tensor:
    """DiagAttention or NormAttention with LRPE, before its norm and output map."""
    q, k, v = heads(attention, x)
    place, options = torch.arange(len(x)), attention.options
    visible = torch.ones(len(x), len(x)).tril() if attention.causal else torch.ones(len(x), len(x))
    if isinstance(attention, DiagAttention):
        visible = visible * (place[:, None] // BLOCK == place // BLOCK)
    else:
        q, k = (F.elu(y) + (options.feature_map == "1+elu") for y in (q, k))
    theta, direction = attention.urpe.theta.flatten(), attention.urpe.v
    turns = torch.exp(1j * place[:, None] * theta)
    reflection = torch.eye(len(direction)).double() - 2 * torch.outer(direction, direction)
    q, k = (torch.view_as_complex((y @ reflection).unflatten(-1, (-1, 2))) * turns for y in (q, k))
    scores = (q @ k.mH).real
    if not isinstance(attention, DiagAttention):
        return joined(scores * visible, v)
    scores = scores * v.shape[-1] ** -0.5
    if options.activation == "relu":
        return joined(scores.clamp(min=0) * visible, v)
    return joined(scores.masked_fill(visible == 0, -torch.inf).softmax(-1), v)


def transnormer_with_its_norm(attention: nn.Module, x: Tensor) -> Tensor:
    mixed = transnormer(attention, x)
    return linear(attention.out_proj, mixed if attention.norm is None else rms_norm(mixed))


def pre_norm(model: nn.Module, x: Tensor, attend: Callable) -> Tensor:
    """The layers and the last norm of an encoder with LayerNorms."""
    for layer in model.layers:
        x = x + attend(layer.self_attn, layer_norm(layer.self_attn_layer_norm, x))
        x = x + ffn(layer, layer_norm(layer.final_layer_norm, x))
    return layer_norm(model.layer_norm, x)


def close(found: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("arch", ["transnormer_t1", "transnormer_t2"])
@torch.no_grad()
def test_transnormer_language_model(arch):
    model, row = perturbed(lm.build_lm(arch, diag_block_size=BLOCK)), lm.tokens(1, LENGTHS[0])
    decoder = model.decoder
    x = math.sqrt(24) * decoder.embed_tokens.weight[row[0]]
    x = x + decoder.embed_positions(torch.arange(LENGTHS[0])[None])[0]
    for layer in decoder.layers:
        x = x + transnormer_with_its_norm(layer.self_attn, rms_norm(x))
        x = x + glu(layer.glu, rms_norm(x))
    close(model(row)[0][0], rms_norm(x) @ decoder.embed_tokens.weight.T)


@pytest.mark.parametrize("arch", ["roberta_transnormer_t1", "roberta_transnormer_t2"])
@torch.no_grad()
def test_transnormer_encoder(arch):
    model, rows = perturbed(roberta.build_roberta(arch, diag_block_size=BLOCK)), roberta.sentences(LENGTHS)
    encoder = model.encoder.sentence_encoder
    features = model(rows, features_only=True)[0]
    for row, length, found in zip(rows, LENGTHS, features, strict=True):
        x = encoder.embed_tokens.weight[row[:length]] + encoder.embed_positions.weight[2 : length + 2]
        x = layer_norm(encoder.layernorm_embedding, x)
        for layer in encoder.layers:
            x = rms_norm(x + transnormer_with_its_norm(layer.self_attn, x))
            x = rms_norm(x + glu(layer.glu, x))
        close(found[:length], x)


@torch.no_grad()
def test_long_range_arena_of_skyformer():
    model = perturbed(build_model("lra_skyformer", lra_task("listops", length=40), **{**SMALL, **SHORT}))
    rows, inner, outer = roberta.sentences(LENGTHS, words=19), model.classifier[0], model.classifier[2]
    for row, length, found in zip(rows, LENGTHS, model(rows, torch.tensor(LENGTHS)), strict=True):
        x = pre_norm(model, model.input(row[None, :length])[0], softmax).mean(0)
        close(found, linear(outer, linear(inner, x).clamp(min=0)))


@torch.no_grad()
def test_long_range_arena_of_state_spaces_in_training():
    options = {**SHORT, "encoder_embed_dim": 16, "embedding_dropout": 0.0, "diag_block_size": BLOCK}
    model = build_model("lra_state_space", lra_task("text", "state-space", length=40), **options)
    model, rows = perturbed(model).train(), roberta.sentences(LENGTHS, words=100)
    x = [model.input(row[None, :length])[0] for row, length in zip(rows, LENGTHS, strict=True)]
    for layer, gated in zip(model.layers, (True, False), strict=True):
        attention, norm = layer.self_attn, layer.self_attn.norm
        mixed = [transnormer(attention, y) for y in batch_norm(layer.self_attn_layer_norm, x)]
        if gated:
            mixed = [norm.scale * rms_norm(y) * torch.sigmoid(norm.gate * y) for y in mixed]
        else:
            mixed = batch_norm(norm, mixed)
        x = [y + linear(attention.out_proj, z) for y, z in zip(x, mixed, strict=True)]
        normed = batch_norm(layer.final_layer_norm, x)
        x = [y + glu(layer.glu, z) for y, z in zip(x, normed, strict=True)]
    pooled = torch.stack([y.mean(0) for y in batch_norm(model.layer_norm, x)])
    close(model(rows, torch.tensor(LENGTHS)), linear(model.classifier, pooled))


@torch.no_grad()
def test_vision_transformer():
    model = perturbed(build_vit(ImageShape(17, 8, 6, 3), **SMALL_VIT))
    images = torch.randint(0, 17, (3, 8, 6, 3), dtype=torch.uint8)
    for patches, found in zip(model.patches(images), model(images), strict=True):
        x = torch.cat([model.cls[None], patches]) + model.positions.weight
        close(found, linear(model.classifier, pre_norm(model, x, softmax)[0]))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@torch.no_grad()
def test_dropout_drops_its_share_of_either_residual_branch(dtype):
    """By kernels and without: the attention gives 7 everywhere, the GLU 70."""
    layer = lm.build_lm("transnormer_t1", dropout=0.3).train().to(dtype).decoder.layers[0]
    for last, value in ((layer.self_attn.out_proj, 7), (layer.glu.l3, 70)):
        last.weight.zero_()
        last.bias.fill_(value)
    out = layer(torch.zeros(50, 4, 24, dtype=dtype))
    kept = [(out.round() == value).double().mean().item() for value in (0, 10, 100, 110)]
    assert kept == pytest.approx([0.09, 0.21, 0.21, 0.49], abs=0.04)
