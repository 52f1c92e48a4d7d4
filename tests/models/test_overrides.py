"""Other values for a checkpoint's settings: names that it lacks, and values that cannot be."""

from argparse import Namespace

import pytest
import torch
from fairseq import checkpoint_utils
from fairseq.dataclass import utils
from fairseq.models import MODEL_DATACLASS_REGISTRY
from omegaconf import OmegaConf

from user_dir.checks.overrides import check_names, check_overrides
from user_dir.errors import UserError
from user_dir.models import LinearAttentionLM


@pytest.fixture(scope="module")
def checkpoint(trained):
    return str(trained[0] / "checkpoint_last.pt")


def command(path, overrides):
    """The configuration of an evaluation with `--model-overrides`."""
    evaluation = {"model_overrides": overrides, "path": path}
    whole = {"checkpoint_shard_count": 1, "checkpoint_suffix": ""}
    return OmegaConf.create({"common_eval": evaluation, "checkpoint": whole})


@pytest.mark.parametrize(
    "overrides", ["{}", "{'dropout': 0.1}", "{'model': {'dropout': 0.1}}", "{'data': 'x', 'beam': 2}"]
)
def test_settings_of_the_checkpoint_may_be_given(overrides, checkpoint):
    check_overrides(command(checkpoint, overrides))


@pytest.mark.parametrize(
    "overrides", ["{'decoder_atention': 'norm'}", "{'model': {'decoder_atention': 'norm'}}"]
)
def test_a_misspelt_name_is_refused_with_its_nearest(overrides, checkpoint):
    """fairseq evaluates the model as if nothing had been given."""
    said = "--model-overrides has 'decoder_atention', which is no setting of .*; the nearest are decoder_att"
    with pytest.raises(UserError, match=said):
        check_overrides(command(f"{checkpoint}:{checkpoint}", overrides))


def test_a_chosen_tokeniser_has_settings_of_its_own(checkpoint):
    check_names("x", {"bpe": "sentencepiece", "sentencepiece_model": "a"}, checkpoint)
    with pytest.raises(UserError, match="has 'sentencepiece_model'"):
        check_names("x", {"sentencepiece_model": "a"}, checkpoint)


def test_a_namespace_takes_new_settings_of_its_model(tmp_path):
    path = str(tmp_path / "old.pt")
    torch.save({"model": {}, "args": Namespace(arch="transnormer_t1", dropout=0.1)}, path)
    check_names("x", {"dropout": 0.2, "diag_block_size": 8}, path)
    with pytest.raises(UserError, match="has 'diag_block'"):
        check_names("x", {"diag_block": 8}, path)


def test_python_refuses_a_misspelt_name(checkpoint, commands):
    folder, _, name = checkpoint.rpartition("/")
    LinearAttentionLM.from_pretrained(folder, name, str(commands.data), beam=2)
    with pytest.raises(UserError, match="from_pretrained has 'droput', which is no setting of"):
        LinearAttentionLM.from_pretrained(folder, name, str(commands.data), droput=0.1)


def test_a_value_of_another_type(checkpoint, commands):
    overrides = {"data": str(commands.data), "decoder_layers": "two"}
    with pytest.raises(
        UserError, match="decoder_layers of .* is wrong: Value 'two' .* Integer; correct it in"
    ):
        checkpoint_utils.load_model_ensemble_and_task([checkpoint], overrides)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (
            {"decoder_atention": "norm"},
            "transnormer_t1 has no setting 'decoder_atention'; the nearest are decoder_att",
        ),
        (
            {"decoder_layers": "two"},
            "the setting decoder_layers of transnormer_t1 is wrong: Value 'two' .* Integer$",
        ),
    ],
)
def test_the_settings_of_a_yaml(given, said):
    """As fairseq-hydra-train completes them."""
    cfg = OmegaConf.create({"model": {"_name": "transnormer_t1", **given}})
    with pytest.raises(UserError, match=said):
        utils.merge_with_parent(MODEL_DATACLASS_REGISTRY["transnormer_t1"], cfg.model)
