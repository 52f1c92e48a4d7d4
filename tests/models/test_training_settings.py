"""Settings of a training that do not go together: a sentence before anything is loaded."""

from types import SimpleNamespace

import pytest

from user_dir.checks.training import (
    check_compiled,
    check_criterion,
    check_layer_drop,
    check_pairs,
    check_plugin_model,
)
from user_dir.errors import UserError

OURS = {"attention_backend": "auto"}


def settings(
    model, ddp_backend="legacy_ddp", criterion="cross_entropy", processes=1, find_unused=False, **task
):
    return SimpleNamespace(
        model=SimpleNamespace(_name="transnormer_t1", **model),
        task=SimpleNamespace(**task),
        criterion=SimpleNamespace(_name=criterion),
        distributed_training=SimpleNamespace(
            ddp_backend=ddp_backend, find_unused_parameters=find_unused, distributed_world_size=processes
        ),
    )


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"ddp_backend": "fully_sharded"}, "--ddp-backend fully_sharded takes the weights"),
        ({"output_dictionary_size": 20}, "--output-dictionary-size gives the outputs fewer words"),
    ],
)
def test_options_for_models_of_fairseq(given, message):
    check_plugin_model(settings(OURS, output_dictionary_size=-1))
    check_plugin_model(settings({}, **given))
    with pytest.raises(UserError, match=message):
        check_plugin_model(settings(OURS, **given))


def test_the_outputs_of_pixels_are_not_tied():
    pixels, tied = {"pixel_head": "categorical"}, {"share_decoder_input_output_embed": True}
    check_plugin_model(settings({**OURS, **tied}))
    check_plugin_model(settings({**OURS, **pixels}))
    with pytest.raises(UserError, match="^--share-decoder-input-output-embed ties .* models of pixels"):
        check_plugin_model(settings({**OURS, **pixels, **tied}))


@pytest.mark.parametrize("option", ["decoder_layerdrop", "encoder_layerdrop", "checkpoint_activations"])
def test_a_compiled_model_is_one_graph(option):
    criterion, model = SimpleNamespace(compile=True), SimpleNamespace(**{option: 0.5})
    check_compiled(criterion, model, on_the_cpu=True)
    check_compiled(criterion, SimpleNamespace(**{option: 0}), on_the_cpu=False)
    check_compiled(SimpleNamespace(compile=False), model, on_the_cpu=False)
    with pytest.raises(UserError, match=f"which --{option.replace('_', '-')} breaks up"):
        check_compiled(criterion, model, on_the_cpu=False)


def test_the_parameters_of_logistics_are_no_scores():
    check_criterion(settings({**OURS, "pixel_head": "categorical"}))
    check_criterion(settings({**OURS, "pixel_head": "logistic"}, criterion="pixel_likelihood"))
    with pytest.raises(UserError, match="--pixel-head logistic .* give --criterion pixel_likelihood"):
        check_criterion(settings({**OURS, "pixel_head": "logistic"}))


@pytest.mark.parametrize("side", ["encoder", "decoder"])
@pytest.mark.parametrize("backend", ["pytorch_ddp", "c10d"])
def test_layer_drop_under_ddp(side, backend):
    """Its second update would end in torch's traceback."""
    model = {f"{side}_layerdrop": 0.2}
    for fine in (
        settings(model, backend),
        settings(model, processes=2),
        settings(model, backend, processes=2, find_unused=True),
        settings({f"{side}_layerdrop": 0.0}, backend, processes=2),
    ):
        check_layer_drop(fine)
    with pytest.raises(UserError, match=f"--{side}-layerdrop .* {backend} .*--ddp-backend legacy_ddp"):
        check_layer_drop(settings(model, backend, processes=2))


@pytest.mark.parametrize("option", ["checkpoint_activations", "offload_activations"])
def test_checkpointed_pairs_under_ddp(option):
    """Its first update would end in torch's traceback: the layers run once for each sequence."""
    one, two = (SimpleNamespace(data=SimpleNamespace(inputs=("input",) * count)) for count in (1, 2))
    refused = settings({option: True}, "pytorch_ddp", processes=2)
    check_pairs(refused, one)
    check_pairs(refused, SimpleNamespace())
    check_pairs(settings({option: False}, "pytorch_ddp", processes=2), two)
    check_pairs(settings({option: True}, "pytorch_ddp"), two)
    check_pairs(settings({option: True}, processes=2), two)
    with pytest.raises(UserError, match=f"--{option.replace('_', '-')} .*; give --ddp-backend legacy_ddp"):
        check_pairs(refused, two)
