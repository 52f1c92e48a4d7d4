"""Fixtures: a tiny corpus, an experiment on it, a model trained by it, and commands run in-process."""

import fcntl
import json
import os
import re
import shutil
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from conventions import LOCK, OWN_ATTENTIONS
from tests.helpers import commands, encoders, forked
from tests.helpers.commands import Command
from tests.helpers.logs import wait_for
from tests.helpers.once import filled_once
from tests.helpers.prepared import preprocess, write_corpus
from tests.helpers.tiny import write_experiment

BASE = """
common: {seed: 1, log_format: json, log_interval: 1}
task: {_name: language_modeling, data: nowhere, tokens_per_sample: 32, sample_break_mode: none}
criterion: {_name: chunked_cross_entropy}
dataset: {batch_size: 8, num_workers: 0}
distributed_training: {distributed_world_size: 2}
optimization: {max_update: 4, update_freq: [2], lr: [0.01]}
optimizer: {_name: adam, adam_betas: "(0.9, 0.98)"}
lr_scheduler: {_name: inverse_sqrt, warmup_updates: 2}
checkpoint: {no_epoch_checkpoints: true, save_interval_updates: 2, keep_interval_updates: 1}
model: {decoder_embed_dim: 16, decoder_layers: 2, decoder_attention_heads: 2, dropout: 0.0}
"""
Refusal = Callable[..., str]


@pytest.fixture(scope="session", autouse=True)
def quick() -> Iterator[None]:
    """Commands called in this process start forks of a process that has imported fairseq."""
    with pytest.MonkeyPatch.context() as patch:
        for change in forked.patches():
            patch.setattr(*change)
        yield


@pytest.fixture(scope="session")
def corpus(tmp_path_factory) -> Path:
    """A folder as data-prep/ leaves it, its path with spaces and a quote."""

    def fill(folder: Path) -> None:
        write_corpus(folder)
        prepared, splits = folder / "it's a corpus", {}
        preprocess({split: folder / f"{split}.txt" for split in ("train", "valid", "test")}, prepared)
        for split in ("train", "valid", "test"):
            lines = (folder / f"{split}.txt").read_text().splitlines()
            splits[split] = {"words": sum(len(line.split()) + 1 for line in lines)}
        manifest = {"corpus": "tiny", "tokenizer": "words", "splits": splits}
        (prepared / "preparation.json").write_text(json.dumps(manifest))

    return filled_once(tmp_path_factory, "tiny corpus", fill) / "it's a corpus"


@pytest.fixture(scope="session")
def config(tmp_path_factory) -> Path:
    """The YAML of a tiny experiment; base.yaml and one of the vanilla model lie beside it."""

    def fill(folder: Path) -> None:
        write_experiment(folder / "tiny", BASE, "transnormer_t1", "transformer_lm")

    return filled_once(tmp_path_factory, "tiny experiment", fill) / "tiny" / "transnormer_t1.yaml"


@pytest.fixture(scope="session")
def trained(corpus, config, tmp_path_factory) -> Path:
    """A copy, of this process, of a run of the tiny experiment."""
    from tests.helpers.tiny import train_run

    made = filled_once(tmp_path_factory, "tiny run", lambda folder: train_run(config, corpus, folder / "run"))
    return Path(shutil.copytree(made / "run", tmp_path_factory.mktemp("runs") / "a run"))


@pytest.fixture
def call() -> Callable[..., None]:
    """Runs a command in this process: `call(command, argument, ...)`."""
    return commands.call


@pytest.fixture
def refused(call) -> Refusal:
    """Runs a command that must end as a user's mistake ends; gives its sentence."""

    def run(command: Command, *arguments: object) -> str:
        with pytest.raises(SystemExit) as exit_:
            call(command, *arguments)
        sentence = exit_.value.code
        assert isinstance(sentence, str), f"exit code {sentence}"
        assert sentence.startswith("error: ") and "\n" not in sentence
        return sentence

    return run


@pytest.fixture
def kill(root) -> Callable[..., None]:
    """Runs a command in its own process group and kills (-9) it when its log says `sign`."""

    def run(command: Command, arguments: list[object], log: Path, sign: str) -> None:
        name = command if isinstance(command, str) else command.__name__.removeprefix("lab.")
        command = [sys.executable, "-m", "lab", *name.split(), *map(str, arguments)]
        killed = forked.start(command, cwd=root, own_group=True)
        wait_for(sign, log, killed.process.is_alive)
        os.killpg(killed.process.pid, signal.SIGKILL)
        assert killed.wait().returncode == -signal.SIGKILL
        with suppress(FileNotFoundError), (log.parent / LOCK).open() as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)  # until the training that it started has ended, too
        log.unlink()

    return run


@pytest.fixture(scope="session")
def encoder_corpus(tmp_path_factory) -> Path:
    """A folder for masked_lm as data-prep/roberta.sh leaves it, with a sentencepiece tokeniser."""

    def fill(folder: Path) -> None:
        encoders.write_text(folder)
        options = ("--tokenizer", "sentencepiece", "--vocab-size", 340)
        encoders.prepare("roberta", "text", "--from", folder, "--dest", folder / "prepared", *options)

    return filled_once(tmp_path_factory, "encoder corpus", fill) / "prepared"


@pytest.fixture(scope="session")
def encoder_configs(tmp_path_factory) -> Path:
    """The YAMLs of a tiny masked-LM experiment."""
    folder = tmp_path_factory.mktemp("configs") / "encoders"
    return write_experiment(folder, encoders.BASE, "roberta_transnormer_t1", "roberta_lln_diag").parent


@pytest.fixture(scope="session")
def pretrained(encoder_corpus, encoder_configs, tmp_path_factory) -> Path:
    """The folder of a pre-training run of four updates, saved after every second."""
    from tests.helpers.tiny import train_run

    config = encoder_configs / "roberta_transnormer_t1.yaml"

    def fill(folder: Path) -> None:
        train_run(config, encoder_corpus, folder / "an encoder")

    return filled_once(tmp_path_factory, "pretrained", fill) / "an encoder"


@pytest.fixture(scope="session")
def glue(encoder_corpus, tmp_path_factory) -> Path:
    """The nine GLUE tasks, prepared from a few made-up rows each; the rows lie in `raw`."""

    def fill(folder: Path) -> None:
        raw, prepared = folder / "raw", folder / "prepared"
        encoders.write_glue(raw)
        encoders.prepare("glue", raw, "--tokenizer-from", encoder_corpus, "--dest", prepared, "--partial")

    return filled_once(tmp_path_factory, "glue", fill) / "prepared"


@pytest.fixture(scope="session")
def finetuned(pretrained, glue, tmp_path_factory) -> Path:
    """The results of fine-tuning on all nine tasks: one run of three updates each."""
    from lab.commands import finetune_glue

    def fill(folder: Path) -> None:
        words = [pretrained / "checkpoint_last.pt", "--data", glue, "--out", folder / "results"]
        words += ["--max-update", 3, "--learning-rates", "0.01", "--seeds", "1"]
        commands.call(finetune_glue, *words)

    return filled_once(tmp_path_factory, "finetuned", fill) / "results"


@pytest.fixture
def own_attention(root, tmp_path, monkeypatch) -> Iterator[Path]:
    """The folder of the attention `mine` that CONTRIBUTING.md shows, registered as long as the test lasts."""
    from user_dir.attention import own, registry

    page = (root / "CONTRIBUTING.md").read_text(encoding="utf-8")
    attention, form = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    folder = tmp_path / "attentions"
    (folder / "export").mkdir(parents=True)
    (folder / "mine.py").write_text(attention)
    (folder / "export" / "mine.py").write_text(form)
    monkeypatch.setenv(OWN_ATTENTIONS, str(folder))
    own.load_own()
    yield folder
    registry._REGISTRY.pop("mine")
    sys.modules.pop("own_attention_mine")
