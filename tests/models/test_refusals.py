"""Plain fairseq commands with the plugin refuse settings that would give a wrong figure or a traceback."""

import math
import os
import shutil
import subprocess
import sys
from argparse import Namespace

import pytest
import torch
from fairseq import checkpoint_utils, options
from fairseq.data import data_utils
from fairseq.dataclass.utils import convert_namespace_to_omegaconf
from fairseq.optim import FairseqOptimizer
from fairseq.optim.lr_scheduler import FairseqLRScheduler
from fairseq.sequence_generator import SequenceGenerator
from fairseq.tasks import FairseqTask
from fairseq.tasks.language_modeling import LanguageModelingTask
from fairseq.trainer import Trainer
from fairseq_cli import eval_lm, validate
from fairseq_cli import train as fairseq_train

from conventions import sentence_of
from tests.helpers.lm import build_lm, dictionary
from user_dir.checks.checkpoints import checkpoint_files
from user_dir.checks.settings import check_settings, read_overrides
from user_dir.errors import UserError, sentence_of_fairseq
from user_dir.fairseq_patches.diverged import _error_of, check_loss, refused_losses
from user_dir.fairseq_patches.trainer import explained_misfit
from user_dir.models import LinearAttentionLM, LinearAttentionRoberta


def evaluate(data, checkpoint, *extra):
    """`fairseq-eval-lm` in this process, with README's flags unless `extra` has others."""
    words = [data, "--path", checkpoint, "--sample-break-mode", "none", "--cpu", *extra]
    parser = options.get_eval_lm_parser()
    args = options.parse_args_and_arch(parser, [str(word) for word in words])
    return eval_lm.main(convert_namespace_to_omegaconf(args))


@pytest.fixture(scope="module")
def checkpoint(trained):
    return trained[0] / "checkpoint_last.pt"


def test_evaluation_leaves_no_sample_out(commands, checkpoint):
    tokens = ("--tokens-per-sample", 128)
    assert evaluate(commands.data, checkpoint, *tokens)["perplexity"] > 1
    for length in (129, 4096):
        with pytest.raises(UserError, match="longer than the 128 positions of the model .* left out"):
            evaluate(commands.data, checkpoint, "--tokens-per-sample", length)
    with pytest.raises(UserError, match="--max-tokens is 100, less than the 128 tokens"):
        evaluate(commands.data, checkpoint, *tokens, "--max-tokens", 100)
    with pytest.raises(UserError, match="not one token was evaluated"):
        evaluate(commands.data, checkpoint, *tokens, "--num-shards", 99, "--shard-id", 98)


def test_a_shorter_sample_leaves_the_model_its_positions(checkpoint):
    """fairseq-validate gives --tokens-per-sample to the model, too."""
    for length in (128, 16):
        overrides = {"tokens_per_sample": length}
        [model], cfg, _ = checkpoint_utils.load_model_ensemble_and_task([str(checkpoint)], overrides)
        assert cfg.task.tokens_per_sample == length and model.decoder.max_target_positions == 128


def test_an_ensemble_by_its_names_or_a_wildcard(commands, trained, tmp_path):
    """Names may hold colons and wildcards themselves; validation takes one model."""
    odd = tmp_path / "a:b [1]@*.pt" / "x.pt"
    odd.parent.mkdir()
    shutil.copy(trained[0] / "checkpoint_last.pt", odd)
    saved = sorted(trained[0].glob("checkpoint_1_*.pt"))
    assert checkpoint_files([f"{odd}:{saved[0]}"]) == [str(odd), str(saved[0])]
    assert checkpoint_files(f"{odd}:none.pt".split(":")) == [str(odd), "none.pt"]
    assert checkpoint_files([str(trained[0] / "checkpoint_1_*.pt")]) == [str(path) for path in saved]
    alone, twice = (
        float(evaluate(commands.data, path, "--tokens-per-sample", 32)["perplexity"])
        for path in (odd, f"{odd}:{odd}")
    )
    assert twice == pytest.approx(alone, rel=1e-4)


POSITIONS = {"tokens_per_sample": 32, "max_target_positions": 32}


def written(prompt, model=None, **options):
    """The tokens of the best continuation that fairseq's generator finds for a prompt of word numbers."""
    model, words = model or build_lm("transnormer_t1", **POSITIONS), dictionary(40)
    generator = SequenceGenerator([model], words, **options)
    source = torch.tensor([[words.eos(), *prompt]])
    sample = {"net_input": {"src_tokens": source, "src_lengths": torch.tensor([source.shape[1]])}}
    return LanguageModelingTask(Namespace(), words).inference_step(generator, [model], sample)[0][0]["tokens"]


@pytest.mark.parametrize("beam", [1, 3])
def test_a_prompt_that_leaves_nothing_to_write(beam):
    """fairseq returns its first tokens as the continuation."""
    prompt = list(range(4, 16))
    for limit in ({"max_len_b": 13}, {"max_len_a": 1, "max_len_b": 1}):
        tokens = written(prompt, beam_size=beam, **limit).tolist()
        assert tokens[:12] == prompt and len(tokens) > 12
    for length in (8, 12):
        said = f"a prompt of 12 tokens leaves nothing to write: .* allows {length} in all; .* --max-len-a 1"
        with pytest.raises(UserError, match=said):
            written(prompt, beam_size=beam, max_len_b=length)
    assert written([4] * 30, beam_size=beam).shape[0] > 30
    with pytest.raises(UserError, match="of 31 tokens leaves nothing to write to a model of 32 positions"):
        written([4] * 31, beam_size=beam)


@pytest.mark.parametrize("prompt", [[4, 5, 2, 6], [4, 5, 2]], ids=["inside", "at the end"])
@pytest.mark.parametrize("beam", [1, 3])
def test_a_prompt_that_holds_the_end_of_a_line(beam, prompt):
    """fairseq returns the text before it, without an error."""
    with pytest.raises(UserError, match="the prompt holds </s>, the end of a line"):
        written(prompt, beam_size=beam, max_len_b=20)


@pytest.mark.parametrize("beam", [1, 3])
def test_generation_from_probabilities_that_are_nan(beam):
    model = build_lm("transnormer_t1")
    next(model.decoder.layers[1].parameters()).data.fill_(float("nan"))
    with pytest.raises(UserError, match="the model gives probabilities that are NaN: .* earlier checkpoint"):
        written([4, 5], model, beam_size=beam, max_len_b=8)


def test_data_of_a_tokeniser_without_it_are_noted(caplog, tmp_path):
    (tmp_path / "sentencepiece.bpe.model").touch()
    check_settings(Namespace(data=str(tmp_path), buffer_size=1, bpe=None))
    assert f"add --bpe sentencepiece --sentencepiece-model {tmp_path}/sentencepiece" in caplog.text


def test_a_second_language_model_in_every_generator(commands, trained, checkpoint):
    """fairseq-interactive and the hub ignore `--lm-path`."""
    overrides = {"data": str(commands.data)}
    models, _, task = checkpoint_utils.load_model_ensemble_and_task([checkpoint], arg_overrides=overrides)
    first = trained[0] / "checkpoint_1_4.pt"
    generator = task.build_generator(models, Namespace(lm_path=str(first), lm_weight=0.5))
    saved = torch.load(first, weights_only=True)["model"]
    weights = generator.lm_model.state_dict()
    assert generator.lm_weight == 0.5
    assert all(torch.equal(weights[name], saved[name]) for name, _ in generator.lm_model.named_parameters())


@pytest.mark.parametrize(
    "overrides", ["{", "[1]", "{1: 2}", "open('/dev/null')", "__import__('os').getcwd()"]
)
def test_overrides_are_a_literal_and_never_run(overrides, commands, checkpoint):
    with pytest.raises(UserError, match="write a dictionary such as"):
        evaluate(commands.data, checkpoint, "--tokens-per-sample", 32, "--model-overrides", overrides)
    assert read_overrides("{'dropout': 0.1}") == {"dropout": 0.1}


@pytest.mark.parametrize("change", ["order", "size"])
def test_another_dictionary_is_refused(change, commands, checkpoint, tmp_path):
    data = tmp_path / "data"
    shutil.copytree(commands.data, data)
    lines = (data / "dict.txt").read_text().splitlines()
    lines = lines[::-1] if change == "order" else lines[:-1]
    (data / "dict.txt").write_text("\n".join(lines) + "\n")
    with pytest.raises(UserError, match="is not the one the model was trained with"):
        evaluate(data, checkpoint, "--tokens-per-sample", 32)
    state = torch.load(checkpoint, weights_only=True)
    assert state["cfg"]["model"]["dictionary_sha256"]
    state["cfg"]["model"]["dictionary_sha256"] = None  # as in a checkpoint without the fingerprint
    torch.save(state, tmp_path / "older.pt")
    if change == "size":
        with pytest.raises(UserError, match=r"the dictionary has \d+ entries, but the checkpoint .* \d+"):
            evaluate(data, tmp_path / "older.pt", "--tokens-per-sample", 32)


@pytest.mark.parametrize("tokens", [[[4, 10_000]], [[-1, 4]]])
def test_tokens_outside_the_dictionary(tokens, checkpoint, commands):
    (model,), _, _ = checkpoint_utils.load_model_ensemble_and_task(
        [str(checkpoint)], arg_overrides={"data": str(commands.data)}
    )
    with pytest.raises(UserError, match="the tokens go from .* outside the dictionary of the model"):
        model.eval()(torch.tensor(tokens))


def test_a_language_model_is_no_encoder_of_the_hub(commands, checkpoint):
    with pytest.raises(UserError, match="is not an encoder"):
        LinearAttentionRoberta.from_pretrained(str(checkpoint.parent), checkpoint.name, str(commands.data))


def test_a_hub_without_its_folder(checkpoint, tmp_path):
    load = LinearAttentionRoberta.from_pretrained
    with pytest.raises(UserError, match="no folder .*/none to load"):
        load(str(tmp_path / "none"), checkpoint.name)
    with pytest.raises(UserError, match="no folder .*/none to load"):
        load(str(checkpoint.parent), checkpoint.name, str(tmp_path / "none"))
    with pytest.raises(UserError, match="is not a folder; name its folder, then the file"):
        load(str(checkpoint))
    with pytest.raises(UserError, match="no dictionary .*/dict.txt; .*, as data_name_or_path"):
        LinearAttentionLM.from_pretrained(str(checkpoint.parent), checkpoint.name)


@pytest.fixture
def diverging(commands, tmp_path, monkeypatch):
    """Runs `fairseq-train` on a model whose second layer becomes NaN before the third update."""
    step = Trainer.train_step

    def spoilt(self, samples, raise_oom=False):
        if self.get_num_updates() == 2:
            for weight in self.get_model().decoder.layers[1].parameters():
                weight.data.fill_(float("nan"))
        return step(self, samples, raise_oom)

    monkeypatch.setattr(Trainer, "train_step", spoilt)

    def train(*extra):
        words = commands.train(tmp_path / "run", "--max-update", "5", *extra)[3:]
        args = options.parse_args_and_arch(options.get_training_parser(), words)
        fairseq_train.main(convert_namespace_to_omegaconf(args))

    return train


@pytest.mark.parametrize("loss", [torch.tensor(float("nan")), float("inf")])
def test_fairseq_validate_refuses_a_loss_that_is_not_finite(loss, commands, checkpoint, monkeypatch):
    monkeypatch.setattr(FairseqTask, "valid_step", lambda *given: (loss, 1, {}))
    words = [commands.data, "--user-dir", commands.root / "user_dir", "--task", "language_modeling"]
    words += ["--path", checkpoint, "--batch-size", 8, "--cpu"]
    monkeypatch.setattr(sys, "argv", ["fairseq-validate", *map(str, words)])
    with pytest.raises(UserError, match="the loss is NaN or infinite: .* name an earlier checkpoint"):
        validate.cli_main()


def test_a_finite_loss_is_reported_as_it_is(monkeypatch):
    monkeypatch.setattr(FairseqTask, "valid_step", lambda self, loss: (loss, 1, {}))
    task = FairseqTask(Namespace())
    with refused_losses():
        assert task.valid_step(torch.tensor(2.5))[0] == 2.5
    assert task.valid_step(float("inf"))[0] == float("inf")


PLACE = r"NaN or infinite at update 3; the first NaN .* forward pass of decoder.layers.1;"


@pytest.mark.parametrize("saves", [False, True])
def test_a_diverged_run_names_update_and_layer(saves, diverging, tmp_path):
    with pytest.raises(UserError, match=f"gradients are {PLACE}"):
        diverging(*([] if saves else ["--no-save"]))
    assert (tmp_path / "run" / "crash.pt").exists() == saves


def test_a_diverged_run_in_half_precision(diverging, monkeypatch):
    """fairseq's loss scale falls to its minimum first, in far fewer tries than a logging interval has."""
    monkeypatch.setattr(torch.Tensor, "cuda", lambda self: self)  # fairseq calls it where the scale falls
    with pytest.raises(UserError, match=f"the scaled loss is {PLACE}"):
        diverging("--no-save", "--fp16", "--fp16-no-flatten-grads", "--fp16-init-scale", "4")


def test_an_update_without_a_token_to_predict_has_not_diverged():
    """Of the masked ones a small batch may have none: its mean loss is 0 / 0."""
    cfg = Namespace(common=Namespace(log_interval=1))
    trainer = Namespace(cfg=cfg, get_num_updates=lambda: 7)
    check_loss(trainer, {"loss": math.nan, "sample_size": torch.tensor(0.0)})
    with pytest.raises(UserError, match="the loss is nan at update 7"):
        check_loss(trainer, {"loss": math.nan, "sample_size": torch.tensor(1.0)})


def test_a_validation_that_is_nan_replaces_no_best_checkpoint(commands, tmp_path, monkeypatch, caplog):
    """fairseq forgets the best score at NaN, and keeps a first score of NaN as the best of --patience."""
    scores, found = {1: math.nan, 2: 1.5, 3: math.nan, 4: 2.0}, []

    def by_update(cfg, trainer, *unused):
        found.append((tmp_path / "checkpoint_best.pt").exists())
        return {"loss": scores[trainer.get_num_updates()]}

    monkeypatch.setattr(fairseq_train, "get_valid_stats", by_update)
    every = ("--validate-interval-updates", "1", "--save-interval-updates", "1", "--patience", "3")
    words = commands.train(tmp_path, "--max-update", "4", *every)[3:]
    args = options.parse_args_and_arch(options.get_training_parser(), words)
    fairseq_train.main(convert_namespace_to_omegaconf(args))
    best, last = (torch.load(tmp_path / f"checkpoint_{name}.pt")["extra_state"] for name in ("best", "last"))
    assert (best["val_loss"], best["best"], last["best"], last["val_loss"]) == (1.5, 1.5, 1.5, 2.0)
    assert last["patience"] == {"best": 1.5, "num_runs": 2}
    assert found == [False, False, True, True] and caplog.text.count("the validation's loss is NaN") == 2


def test_a_valid_split_that_is_not_named(tmp_path):
    for split in ("train", "valid", "valid1"):
        (tmp_path / f"{split}.idx").touch()
    words = [str(tmp_path), "--arch", "transnormer_t1", "--task", "language_modeling"]
    cfg = convert_namespace_to_omegaconf(options.parse_args_and_arch(options.get_training_parser(), words))
    with pytest.raises(UserError, match="'valid1'.*; add --combine-val"):
        data_utils.raise_if_valid_subsets_unintentionally_ignored(cfg)


def test_gradients_that_differ_between_processes_are_not_called_infinite():
    norms = "gradients are inconsistent between workers.\nrank   0 = 0.10000000\nrank   1 = {}\n"
    assert "differ between the processes" in str(_error_of(FloatingPointError(norms.format("0.2")), 3, ""))
    assert "are NaN or infinite" in str(_error_of(FloatingPointError(norms.format("nan")), 3, ""))


def test_the_state_of_another_schedule():
    schedule = FairseqLRScheduler(None, FairseqOptimizer(None))
    said = "x.pt was trained with another --lr-scheduler.*--reset-lr-scheduler"
    with pytest.raises(UserError, match=said), explained_misfit("x.pt"):
        schedule.load_state_dict({"lr": 0.1})  # that of the schedule fixed
    with pytest.raises(KeyError, match="lost"), explained_misfit("x.pt"):
        {}["lost"]


def test_the_sentence_of_another_process():
    text = "-- Process 1 terminated with the following error:\nTraceback (most recent call last):\n  File\n"
    for kind in ("UserError", "Diverged"):
        assert sentence_of(Exception(f"{text}conventions.{kind}: the sentence\n")) == "the sentence"
    caught = "Caught UserError in DataLoader worker process 0.\nOriginal Traceback (most recent call last):\n"
    assert sentence_of(UserError(f"{caught}conventions.UserError: the sentence\n")) == "the sentence"
    assert sentence_of(Exception(f"{text}ValueError: another\n")) is None


def test_what_fairseq_says_of_an_option_is_a_sentence():
    def refused(refuse, *arguments, **options):
        with pytest.raises(Exception) as error:
            refuse(*arguments, **options)
        return sentence_of_fairseq(error.value)

    build = FairseqTask(Namespace()).build_generator
    assert refused(build, [], Namespace(sampling_topk=5)) == "--sampling-topk requires --sampling"
    assert refused(build, [], Namespace(sampling=True, match_source_len=True)) is None
    assert refused(int, "--sampling") is None


def test_the_traceback_is_kept_for_whoever_asks(root):
    code = f"import sys; sys.path.insert(0, {str(root / 'user_dir')!r}); import errors as e; "
    code += "e.install_excepthook(); raise e.UserError('the sentence')"
    environment = {**os.environ, "FAIRSEQ_TRACEBACK": "1"}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True)
    assert done.returncode == 1 and "Traceback" in done.stderr
    assert done.stderr.strip().splitlines()[-1] == "error: the sentence"
