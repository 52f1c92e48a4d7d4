"""Fixtures: a tiny corpus, an experiment on it, a model trained by it, and commands run in-process."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

from scripts.command import run_command
from tests.models.conftest import write_corpus

BASE = """
common: {seed: 1, log_format: json, log_interval: 1}
task: {_name: language_modeling, data: nowhere, tokens_per_sample: 32, sample_break_mode: none}
criterion: {_name: cross_entropy}
dataset: {batch_size: 8, num_workers: 0}
distributed_training: {distributed_world_size: 2}
optimization: {max_update: 4, update_freq: [2], lr: [0.01]}
optimizer: {_name: adam, adam_betas: "(0.9, 0.98)"}
lr_scheduler: {_name: inverse_sqrt, warmup_updates: 2}
checkpoint: {no_epoch_checkpoints: true, save_interval_updates: 2, keep_interval_updates: 1}
model: {decoder_embed_dim: 16, decoder_layers: 2, decoder_attention_heads: 2, dropout: 0.0}
"""
MODEL = """
defaults: [_self_, base]
model: {_name: %s}
"""
Refusal = Callable[..., str]


@pytest.fixture(scope="session")
def corpus(tmp_path_factory) -> Path:
    """A folder as data-prep/ leaves it, its path with spaces and a quote."""
    raw = tmp_path_factory.mktemp("raw")
    write_corpus(raw)
    folder = tmp_path_factory.mktemp("prepared") / "it's a corpus"
    command = [sys.executable, "-m", "fairseq_cli.preprocess", "--only-source"]
    command += ["--destdir", folder]
    for split in ("train", "valid", "test"):
        command += [f"--{split}pref", raw / f"{split}.txt"]
    subprocess.run(command, check=True, capture_output=True)
    splits = {}
    for split in ("train", "valid", "test"):
        lines = (raw / f"{split}.txt").read_text().splitlines()
        splits[split] = {"words": sum(len(line.split()) + 1 for line in lines)}
    manifest = {"corpus": "tiny", "tokenizer": "words", "splits": splits}
    (folder / "preparation.json").write_text(json.dumps(manifest))
    return folder


@pytest.fixture(scope="session")
def config(tmp_path_factory) -> Path:
    """The YAML of a tiny experiment; base.yaml and one of the vanilla model lie beside it."""
    folder = tmp_path_factory.mktemp("configs") / "tiny"
    folder.mkdir()
    (folder / "base.yaml").write_text(BASE)
    (folder / "transformer_lm.yaml").write_text(MODEL % "transformer_lm")
    path = folder / "transnormer_t1.yaml"
    path.write_text(MODEL % "transnormer_t1")
    return path


@pytest.fixture(scope="session")
def trained(corpus, config, tmp_path_factory) -> Path:
    """The folder of a run of the tiny experiment."""
    from scripts.train_lm import Machines, train

    return train(config, corpus, Machines(0), tmp_path_factory.mktemp("runs") / "a run")


@pytest.fixture
def call(monkeypatch) -> Callable[..., None]:
    """Runs the command behind a script in this process: `call(module, argument, ...)`."""

    def run(module: ModuleType, *arguments: object) -> None:
        monkeypatch.setattr(sys, "argv", [module.__name__, *map(str, arguments)])
        run_command(module.main)

    return run


@pytest.fixture
def refused(call) -> Refusal:
    """Runs a command that must end as a user's mistake ends; gives its sentence."""

    def run(module: ModuleType, *arguments: object) -> str:
        with pytest.raises(SystemExit) as exit_:
            call(module, *arguments)
        sentence = exit_.value.code
        assert isinstance(sentence, str), f"exit code {sentence}"
        assert sentence.startswith("error: ") and "\n" not in sentence
        return sentence

    return run
