"""`--log-attention-statistics`: its figures, their times, and that it changes nothing else."""

import pytest
import torch
from fairseq.logging import metrics
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from tests.helpers.build import build_model
from tests.helpers.lm import PAD, build_lm, tokens
from tests.helpers.logs import updates
from tests.helpers.lra import SMALL, lra_task
from tests.helpers.roberta import build_roberta
from user_dir.analysis import attention_matrix, entropy, record_inputs, temperature


def logged(model, batch, update):
    """The figures that one training forward of `model` logs in update number `update`, counted from 1."""
    model.train().set_num_updates(update - 1)
    with metrics.aggregate(new_root=True) as figures:
        model(batch)
    return figures.get_smoothed_values()


def test_figures_are_those_of_q_and_k():
    model = build_lm("lln_lm", log_attention_statistics=3)
    batch = tokens(2, 20)
    batch[1, 12:] = PAD
    found = logged(model, batch, 3)
    names = ("sigma_q", "sigma_k", "alpha", "beta")
    every = (*names, "tau", "entropy")
    assert sorted(found) == sorted(f"{name}/layer{i}" for name in every for i in range(2))
    seen = []
    hook = model.decoder.layers[0].self_attn.register_forward_pre_hook(lambda _, args: seen.append(args[0]))
    model(batch)
    hook.remove()
    attention, real = model.decoder.layers[0].self_attn, (batch != PAD).T
    sigma = torch.stack([f(seen[0])[real].std() for f in (attention.q_proj, attention.k_proj)])
    alpha, beta = attention.scale.matched(sigma)
    expected = dict(zip(names, (*sigma.tolist(), alpha.item(), beta.item()), strict=True))
    for name in names:
        assert found[f"{name}/layer0"] == pytest.approx(expected[name], abs=1e-4)


@pytest.mark.parametrize("arch", ["transnormer_t1", "lln_lm", "linear_transformer_lm"])
def test_temperature_and_entropy_are_those_of_the_first_sequence(arch):
    model = build_lm(arch, log_attention_statistics=1)
    batch = tokens(2, 20)
    batch[0, 15:] = PAD
    first = record_inputs(model.eval(), lambda: model(batch[:1, :15]))
    expected = [entropy(attention_matrix(one.module, one.x)).mean().item() for one in first]
    found = logged(model, batch, 1)
    for one, bits in zip(first, expected, strict=True):
        assert found[f"entropy/{one.name}"] == pytest.approx(bits, abs=1e-3)
        if arch != "lln_lm":
            q, k = (one.module.heads(f(one.x)) for f in (one.module.q_proj, one.module.k_proj))
            visible = torch.ones(15, 15).tril().bool()
            tau = temperature(q @ k.mT * q.shape[-1] ** -0.5, visible).mean().item()
            assert found[f"tau/{one.name}"] == pytest.approx(tau, rel=1e-3)


@pytest.mark.parametrize("arch", ["lln_lm", "linear_transformer_lm"])
def test_figures_are_on_the_device_of_the_model(arch):
    model, batch = build_lm(arch, log_attention_statistics=1), tokens(2, 20)
    with torch.device("meta"):  # where tensors are that no device is named for
        assert logged(model, batch, 1)


def test_lln_temperature_of_matched_exponents():
    found = logged(build_lm("lln_lm", log_attention_statistics=1), tokens(2, 20), 1)
    expected = 1 / (found["sigma_q/layer1"] * found["sigma_k/layer1"])
    assert found["tau/layer1"] == pytest.approx(expected, rel=1e-3)
    # Fixed exponents so small that the moment matching gives no variance: no temperature.
    fixed = build_lm("lln_lm", log_attention_statistics=1, lln_alpha=0.1, lln_beta=0.1)
    assert {name for name in logged(fixed, tokens(2, 20), 1) if "tau" in name} == set()


def test_every_third_update_of_training_only():
    model = build_lm("lln_lm", log_attention_statistics=3)
    assert [bool(logged(model, tokens(1, 5), n)) for n in range(1, 7)] == [False, False, True] * 2
    model.set_num_updates(2)
    model.eval()
    with metrics.aggregate(new_root=True) as figures:
        model(tokens(1, 5))
    assert not figures


def test_other_mechanisms_parallel_parts_and_recomputed_layers():
    plan = {"decoder_attention": "softmax+norm,flash,lln", "decoder_layers": 3}
    model = build_lm("lln_lm", log_attention_statistics=1, checkpoint_activations=True, **plan)
    found = logged(model, tokens(2, 9), 1)
    places = ["layer0.0", "layer0.1", "layer2"]
    assert {name for name in found if "sigma_q" in name} == {f"sigma_q/{place}" for place in places}
    assert {name for name in found if "alpha" in name} == {"alpha/layer2"}
    with metrics.aggregate(new_root=True) as figures:  # recomputation in the backward pass
        model(tokens(2, 9))[0].sum().backward()
    assert not figures


def test_encoders_and_state_dict():
    plain, model = build_roberta("roberta_lln"), build_roberta("roberta_lln", log_attention_statistics=1)
    assert plain.state_dict().keys() == model.state_dict().keys()
    model.load_state_dict(plain.state_dict())
    batch = tokens(2, 9)
    assert "beta/layer1" in logged(model, batch, 1)
    torch.testing.assert_close(model.train()(batch)[0], plain.train()(batch)[0])


def test_both_sequences_of_a_pair_are_measured():
    task = lra_task("retrieval", length=20)
    model = build_model("lra_skyformer", task, log_attention_statistics=1, **SMALL).train()
    pair, lengths = (tokens(2, 20), tokens(2, 20, seed=1)), torch.tensor([20, 20])
    model.set_num_updates(0)
    with metrics.aggregate(new_root=True) as found:
        model(pair[0], lengths, pair[1], lengths)
    q_proj = model.layers[0].self_attn.q_proj
    norm = model.layers[0].self_attn_layer_norm
    sigmas = [q_proj(norm(model.input(one))).std().item() for one in pair]
    mean = found.get_smoothed_values()["sigma_q/layer0"]
    assert sigmas[0] != sigmas[1] and mean == pytest.approx(sum(sigmas) / 2, abs=1e-4)


@pytest.mark.slow
def test_training_writes_them_to_the_log_and_to_tensorboard(commands, tmp_path):
    options = ("--log-attention-statistics", "2", "--max-update", "4", "--no-save", "--disable-validation")
    curves = tmp_path / "curves"
    command = commands.train(tmp_path, *options, "--tensorboard-logdir", str(curves), arch="lln_lm")
    rows = updates(commands.run(*command))
    assert [row.get("alpha/layer1") is not None for row in rows] == [False, True, False, True]
    events = EventAccumulator(str(curves / "train_inner")).Reload()
    scalars = events.Scalars("alpha/layer1")
    assert [event.step for event in scalars] == [2, 4]
    assert [event.value for event in scalars] == pytest.approx([rows[i]["alpha/layer1"] for i in (1, 3)])
