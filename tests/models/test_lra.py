"""Long Range Arena encoders: every mechanism, padding, pooling, pixels and pairs."""

import copy
from argparse import Namespace

import pytest
import torch

from tests.helpers.build import assert_same_gradients, build_model
from tests.helpers.lra import SHORT, SMALL, lra_task
from tests.helpers.roberta import sentences
from user_dir.attention import attention_names
from user_dir.errors import UserError
from user_dir.fairseq_patches.trainer import note_data

TOKENS = lra_task("listops", length=70)
PAIRS = lra_task("retrieval", length=70)
PIXELS = lra_task("image", length=64)
PRESETS = ("lra_skyformer", "lra_state_space")


def build(arch="lra_skyformer", task=TOKENS, **options):
    return build_model(arch, task, **{**SMALL, **SHORT, **options}).double()


def tokens(lengths, width=None, seed=0):
    """Padded rows and their lengths."""
    return sentences(lengths, width, words=19, seed=seed), torch.tensor(lengths)


def pixels(rows, length=64):
    generator = torch.Generator().manual_seed(0)
    values = torch.randint(0, 256, (rows, length), generator=generator)
    return values.where(values > 120, 0).to(torch.uint8), torch.full((rows,), length)


def close(got, expected):
    torch.testing.assert_close(got, expected, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("arch", PRESETS)
@pytest.mark.parametrize("mechanism", attention_names(causal=False))
def test_padded_batch_gives_the_logits_of_single_rows(arch, mechanism):
    model = build(arch, encoder_attention=f"{mechanism}*2")
    lengths = [70, 33, 64, 17, 1]
    rows, counts = tokens(lengths)
    with torch.no_grad():
        model.train()(*tokens([50, 60]))  # running statistics other than those it was built with
        model.eval()
        single = [model(row[:n][None], torch.tensor([n])) for row, n in zip(rows, lengths, strict=True)]
        close(model(rows, counts), torch.cat(single))
        close(model(*tokens(lengths, width=90)), torch.cat(single))


def test_every_layer_has_its_own_mechanism():
    model = build(encoder_attention="lln,flash")
    assert [type(layer.self_attn).__name__ for layer in model.layers] == ["LLNAttention", "FlashAttention"]
    alone = build(encoder_attention="lln")
    assert [type(layer.self_attn).__name__ for layer in alone.layers] == ["LLNAttention"] * 2


@pytest.mark.parametrize("arch", PRESETS)
def test_a_pair_is_told_by_both_vectors_their_product_and_difference(arch):
    model = build(arch, PAIRS)
    (first, n), (second, m) = tokens([70, 5]), tokens([30, 44], seed=1)
    x, y = model.encode(first, n), model.encode(second, m)
    close(model(first, n, second, m), model.classifier(torch.cat([x, y, x * y, x - y], -1)))
    assert model.classifier[0].in_features == 4 * 16


@pytest.mark.parametrize("pooling", ["mean", "padded-mean", "cls", "last"])
def test_pooling(pooling):
    model = build(pooling=pooling)
    seen = []
    model.layer_norm.register_forward_hook(lambda module, given, out: seen.append(out.transpose(0, 1)))
    rows, lengths = tokens([70, 3])
    pooled = model.encode(rows, lengths)
    states = seen[0][1]
    expected = {
        "mean": states[:3].mean(0),
        "padded-mean": states[:3].sum(0) / 128,
        "cls": states[0],
        "last": states[2],
    }[pooling]
    close(pooled[1], expected)
    assert states.shape[0] == 70 + (pooling == "cls")


def test_cls_leaves_room_for_the_longest_sequence():
    """Linformer's matrices must reach one position further."""
    model = build(encoder_attention="linformer*2", pooling="cls", max_positions=70)
    assert model(*tokens([70])).shape == (1, 10)


@pytest.mark.parametrize("arch", PRESETS)
def test_black_pixels_are_seen_unless_masked(arch):
    seen, masked = (build(arch, PIXELS, mask_zero_pixels=masked) for masked in (False, True))
    masked.load_state_dict(seen.state_dict())
    image, length = pixels(3)
    assert not torch.allclose(seen(image, length), masked(image, length))


def test_masked_pixels_keep_their_positions_and_nothing_else_enters():
    """As softmax attention sees no order, leaving pixels out equals masking them in place."""
    model = build(task=PIXELS, mask_zero_pixels=True)
    image, length = pixels(2)
    x = model.input(image)
    for row in range(2):
        kept = x[row, image[row] > 0]
        alone = model._through_layers(kept[:, None], None).mean(0)
        close(model.encode(image, length)[row], alone[0])
    black = torch.zeros(2, 64, dtype=torch.uint8)
    assert model(black, length).isfinite().all()


def test_linear_pixels_are_standardised():
    model = build("lra_state_space", PIXELS, pixel_mean=122.6, pixel_std=61.0)
    grey = torch.tensor([[0, 200]], dtype=torch.uint8)
    weight, bias = model.input.values.weight[:, 0], model.input.values.bias
    expected = torch.stack([(p - 122.6) / 61 * weight + bias for p in (0.0, 200.0)])
    torch.testing.assert_close(model.input.values(grey)[0], expected, rtol=1e-5, atol=1e-6)


def test_state_space_parts():
    """Rotary angles are not trained, nothing is reflected, and norms with parameters are inside."""
    diag, norm = (layer.self_attn for layer in build("lra_state_space").layers)
    for attention in (diag, norm):
        assert not attention.urpe.theta.requires_grad and not attention.urpe.v.any()
    assert [type(x.norm).__name__ for x in (diag, norm)] == ["GatedRMSNorm", "BatchNorm"]


def trained_with_and_without_checkpointing(task, *inputs):
    """The two models after a backward pass each."""
    plain, checkpointed = (build("lra_state_space", task, checkpoint_activations=x) for x in (False, True))
    checkpointed.load_state_dict(plain.state_dict())
    for model in (plain, checkpointed):
        torch.manual_seed(0)
        model.train()(*inputs).square().sum().backward()
    return plain, checkpointed


def test_a_batch_counts_once_with_activation_checkpointing():
    plain, checkpointed = trained_with_and_without_checkpointing(TOKENS, *tokens([40, 20]))
    for (name, x), y in zip(plain.state_dict().items(), checkpointed.state_dict().values(), strict=True):
        if not name.endswith("num_batches_tracked"):
            close(y, x)
    assert_same_gradients(plain, checkpointed, rtol=1e-9, atol=1e-9)


def test_checkpointing_knows_the_padding_of_each_sequence_of_a_pair():
    first, second = tokens([40, 20]), tokens([9, 30], width=40, seed=1)
    models = trained_with_and_without_checkpointing(PAIRS, *first, *second)
    assert_same_gradients(*models, rtol=1e-9, atol=1e-9)


def test_a_copy_of_a_checkpointed_model_trains_alone():
    model = build("lra_state_space", checkpoint_activations=True)
    copied = copy.deepcopy(model).train()
    copied(*tokens([40, 20])).sum().backward()
    assert all(p.grad is None for p in model.parameters())


def test_a_sequence_longer_than_the_positions():
    with pytest.raises(UserError, match="a sequence of 129 positions is longer than the 128 of the model"):
        build()(*tokens([129]))


def test_checkpoints_hold_what_was_filled_in_from_the_data():
    """In the configuration of the trainer, of which fairseq gives the model a copy."""
    config = Namespace(model=Namespace(), task=Namespace())
    task = lra_task("retrieval", "state-space")
    model = build_model("lra_state_space", task)
    note_data(config, task, model)
    assert vars(config.model) == {"max_positions": 4096, "glu_dim": 85, "classifier_dim": 64}


def test_a_classifier_without_an_inner_layer():
    assert isinstance(build(classifier_dim=0).classifier, torch.nn.Linear)
    with pytest.raises(UserError, match="--classifier-dim is -1; it must be 0 or more"):
        build(classifier_dim=-1)
