"""Models of images: sizes, likelihoods, and sampling with a state, a cache, or neither."""

import math

import numpy as np
import pytest
import torch

from lab.errors import UserError as CommandError
from lab.measure.pixels import draw, uniforms
from tests.helpers.images import build_pixel_model, pixel_task, write_images
from user_dir.criterions import PixelLikelihoodCriterion

DIMS = 12
PLANS = {"linear": "elu", "softmax": "softmax", "lsh": "reformer", "t2": "diag,norm", "lln_diag": "lln_diag"}
HEADS = ("logistic", "categorical")
plans = pytest.mark.parametrize("plan", PLANS.values(), ids=PLANS)
heads = pytest.mark.parametrize("head", HEADS)
PAPER = {"decoder_embed_dim": 256, "decoder_attention_heads": 8, "decoder_ffn_embed_dim": 1024}


@pytest.fixture(scope="module")
def task(tmp_path_factory):
    return pixel_task(write_images(tmp_path_factory.mktemp("images") / "slopes"))


def batch(task, count=11):
    task.load_dataset("test")
    data = task.dataset("test")
    return data.collater([data[i] for i in range(count)])


@pytest.mark.parametrize(
    ("layers", "size", "parameters"),
    [(8, (28, 28, 1), 6_359_070), (16, (32, 32, 3), 12_677_150)],
    ids=["mnist", "cifar10"],
)
def test_sizes_of_the_papers_models(layers, size, parameters, tmp_path):
    """As many parameters as the authors' code has, and four special symbols in the embedding."""
    folder = write_images(tmp_path / "one", 256, size, (("train", 1), ("valid", 1), ("test", 1)))
    task = pixel_task(folder)
    for arch in ("pixel_linear", "pixel_softmax"):
        model = build_pixel_model(task, arch, decoder_layers=layers, **PAPER)
        assert sum(p.numel() for p in model.parameters()) == parameters + 4 * 128


@heads
def test_log_prob_is_that_of_all_tokens(task, head):
    model, sample = build_pixel_model(task, pixel_head=head), batch(task)
    out = model(**sample["net_input"])
    every = model.get_normalized_probs(out, log_probs=True)
    torch.testing.assert_close(every.exp().sum(-1), torch.ones(11, DIMS))
    assert (every[..., :4] == float("-inf")).all() and every.shape[-1] == 9
    chosen = every.gather(-1, sample["target"][..., None])[..., 0]
    torch.testing.assert_close(model.log_prob(out, sample["target"]), chosen)


def test_a_uniform_model_has_log2_of_the_levels(task):
    model, sample = build_pixel_model(task, pixel_head="categorical"), batch(task)
    torch.nn.init.zeros_(model.decoder.output_projection.weight)
    torch.nn.init.zeros_(model.decoder.output_projection.bias)
    loss, size, _ = PixelLikelihoodCriterion(task)(model, sample)
    assert float(loss) / size / math.log(2) == pytest.approx(math.log2(5), rel=1e-6)


@heads
def test_a_batch_has_the_likelihood_of_its_images_one_by_one(task, head):
    model, whole = build_pixel_model(task, pixel_head=head), batch(task)
    criterion, data = PixelLikelihoodCriterion(task), task.dataset("test")
    alone = sum(float(criterion(model, data.collater([data[i]]))[0]) for i in range(11))
    assert float(criterion(model, whole)[0]) == pytest.approx(alone, rel=1e-5)


def test_given_bytes_do_not_count(task, tmp_path):
    model, sample = build_pixel_model(task), batch(task)
    nats = -model.log_prob(model(**sample["net_input"]), sample["target"])[:, 5:].sum()
    given = pixel_task(write_images(tmp_path / "same"), given_pixels=5)
    loss, size, _ = PixelLikelihoodCriterion(given)(model, batch(given))
    assert size == 11 * (DIMS - 5) and float(loss) == pytest.approx(float(nats), rel=1e-5)


@plans
@heads
def test_sampling_with_a_state_equals_sampling_by_whole_forward_passes(task, plan, head):
    model = build_pixel_model(task, decoder_attention=plan, pixel_head=head).double()
    chance = uniforms(3, range(6), DIMS)
    for known in (0, 6):
        given = torch.from_numpy(np.load(f"{task.cfg.data}/test.images.npy"))[:6].flatten(1)[:, :known].long()
        drawn = draw(model, 2, DIMS, given, chance)
        assert torch.equal(drawn, draw(model, 2, DIMS, given, chance, recompute=True))
        assert torch.equal(drawn[:, :known], given) and drawn.shape == (6, DIMS)
        assert int(drawn.min()) >= 0 and int(drawn.max()) < 5 and len(drawn.unique()) > 2
        alone = [draw(model, 2, DIMS, given[i : i + 1], chance[i : i + 1]) for i in range(6)]
        assert torch.equal(torch.cat(alone), drawn)


def test_draws_depend_on_seed_and_number_only():
    assert torch.equal(uniforms(3, range(4, 6), 7), uniforms(3, range(6), 7)[4:])
    assert not torch.equal(uniforms(3, range(1), 7), uniforms(4, range(1), 7))


@torch.no_grad()
def test_the_state_of_the_papers_linear_model_is_264_kib_at_any_byte(tmp_path):
    folder = write_images(tmp_path / "one", 256, (28, 28, 1), (("train", 1), ("valid", 1), ("test", 1)))
    model = build_pixel_model(pixel_task(folder), decoder_layers=8, **PAPER)
    state: dict = {}
    for length in (1, 50):
        model(torch.full((1, length), 4), incremental_state=state)
        numbers = [x for module in state.values() for x in module.values() if isinstance(x, torch.Tensor)]
        sums = sum(x.nbytes for x in numbers if x.is_floating_point())
        assert sums == 8 * 8 * 32 * 33 * 4 == 264 * 1024


def test_outputs_that_are_not_finite_end_the_drawing(task):
    model = build_pixel_model(task)
    model.decoder.output_projection.bias.data[0] = float("nan")
    with pytest.raises(CommandError, match="outputs at byte 0 are not finite: .*; name an earlier"):
        draw(model, 2, DIMS, torch.zeros(1, 0, dtype=torch.long), uniforms(1, range(1), DIMS))
