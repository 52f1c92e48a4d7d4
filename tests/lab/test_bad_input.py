"""Bad input to every command, all in one process: each ends in one sentence, before anything is written.

Only a training that fails as it begins leaves its folder.
"""

import importlib
import json
import math
import os
import pickle
import re
import shutil
import subprocess
import sys
from argparse import Namespace
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path

import pytest
import torch
from fairseq import options

from lab.files import ROOT
from tests.helpers import tiny
from tests.helpers.commands import offered
from tests.helpers.evil import Evil
from tests.helpers.images import write_images
from tests.lab.mistakes import CASES, CUT, ROWS, RUNS
from tests.lab.mistakes_of_fairseq import FAIRSEQ
from user_dir.checks.training import check_processes
from user_dir.errors import UserError

LEFT = {"train.log", ".run.lock", "data.json", "dict.txt", "run.json"}
"""By a training that failed as it began."""


@pytest.fixture(scope="module")
def place(corpus, config, trained, pretrained, encoder_corpus, glue, tmp_path_factory) -> Iterator[Path]:
    """A folder with sound and damaged files, under the names that the tables use."""
    folder = tmp_path_factory.mktemp("bad input")
    shutil.copytree(trained, folder / "lm", ignore=shutil.ignore_patterns("checkpoint_*.json"))
    sound = {"data": corpus, "encoder": pretrained, "mlm": encoder_corpus, "glue": glue}
    for name, source in sound.items():
        (folder / name).symlink_to(source)
    (folder / "config.yaml").symlink_to(config)
    (folder / "base.yaml").symlink_to(config.with_name("base.yaml"))
    (folder / "latin.yaml").write_bytes("model: {_name: café}\n".encode("latin-1"))
    (folder / "binary.yaml").write_bytes(bytes(range(256)) * 4)
    (folder / "misspelt.yaml").write_text("defaults: [_self_, bsae]\n")
    (folder / "five.yaml").write_text("defaults: [_self_, base]\noptimization: 5\n")
    (folder / "number.yaml").write_text("1: {lr: [0.1]}\n")
    damaged_data(folder, corpus)
    damaged_weights(folder, trained / "checkpoint_last.pt")
    (folder / "text.pt").write_text("no checkpoint\n" * 50)
    torch.save({"model": {"decoder.x": torch.zeros(1)}, "cfg": {"model": {}}}, folder / "fake.pt")
    torch.save({"model": {"decoder.x": torch.zeros(1)}, "cfg": ["model"]}, folder / "list.pt")
    for task in ("lra", "pixels"):
        torch.save({"model": {}, "cfg": {"task": {"_name": task}}}, folder / f"{task}.pt")
    torch.save({"model": {"decoder.x": torch.zeros(1)}, "cfg": Evil(folder / "trace")}, folder / "code.pt")
    fields = {"model": {"_name": "no_such"}, "task": {"tokens_per_sample": "many"}}
    torch.save({"model": {"decoder.x": torch.zeros(1)}, "cfg": fields}, folder / "words.pt")
    for name, source in (("nan", trained), ("nan-encoder", pretrained)):
        write_nan(folder / name / "checkpoint_last.pt", source)
    (folder / "empty").mkdir()
    (folder / "blank").touch()
    yield folder
    assert not (folder / "trace").exists()


@pytest.fixture(scope="module")
def runs(place, corpus, config, trained, encoder_corpus, finetuned, tmp_path_factory) -> Path:
    """The same folder with a run of each kind, and more that is unfit."""
    pixels = tiny.trained("pixels", tmp_path_factory)
    lra = tiny.write("lra_skyformer", tmp_path_factory.mktemp("lra"))
    links = {
        "vanilla.yaml": config.with_name("transformer_lm.yaml"),
        "lra.yaml": lra.config,
        "listops": lra.data,
        "pixels": pixels.run,
        "rte": finetuned / "RTE" / "0.01" / "seed1",
        "text.yaml": ROOT / "configs" / "lra_skyformer" / "text.yaml",
    }
    for name, source in links.items():
        (place / name).symlink_to(source)
    for name, text in ROWS.items():
        (place / f"{name}.tsv").write_text(text)
    shutil.copytree(trained, place / "run")
    for name in ("shorter", *CUT):
        shutil.copytree(corpus, place / name)
    for name, (file, end, _) in CUT.items():
        content = (corpus / file).read_bytes()
        (place / name / file).unlink()
        if end is not None:
            (place / name / file).write_bytes(content[:end])
    shutil.copytree(encoder_corpus, place / "tokeniser")
    lines = (corpus / "dict.txt").read_text().splitlines()
    (place / "shorter" / "dict.txt").write_text("\n".join(lines[:-1]) + "\n")
    (place / "tokeniser" / "preparation.json").unlink()
    with (place / "tokeniser" / "dict.txt").open("a") as file:
        file.write("more 1\n")
    (place / "masked.yaml").write_text("task: {_name: masked_lm}\n")
    (place / "new.tsv").write_text("index\tprediction\n0\tentailment\n")  # predictions, which stay
    (place / "begun.pt").write_bytes(b"PK\x03\x04")
    (place / "nothing.pt").write_bytes(b"")
    (place / "half.pt").write_bytes((trained / "checkpoint_last.pt").read_bytes()[:5000])
    torch.save({"weights": torch.zeros(3)}, place / "foreign.pt")
    torch.save({"model": {}, "cfg": None}, place / "bare.pt")
    torch.save({"model": Evil(place / "trace")}, place / "evil.pt")
    (place / "pickled.pt").write_bytes(pickle.dumps({"model": Evil(place / "trace")}))
    write_images(place / "levels", levels=6)
    for name in ("thesis", "alone"):
        (place / name).mkdir()
    (place / "thesis" / "thesis.txt").write_text("mine")
    shutil.copy(trained / "checkpoint_last.pt", place / "alone")
    return place


def write_nan(path: Path, run: Path) -> None:
    """The checkpoint of a run that has diverged, its vocabulary beside it."""
    state = torch.load(run / "checkpoint_last.pt")
    next(iter(state["model"].values()))[0] = math.nan
    path.parent.mkdir()
    torch.save(state, path)
    shutil.copy(run / "dict.txt", path.parent)


def damaged_data(folder: Path, corpus: Path) -> None:
    """Copies of the corpus, each with one file damaged."""
    manifest = json.loads((corpus / "preparation.json").read_text())
    for name in ("list", "words", "sizes", "dictionary", "rows", "order", "cut", "cut-index"):
        shutil.copytree(corpus, folder / name)
        (folder / name / "preparation.json").unlink()
    (folder / "list" / "preparation.json").write_text("[1, 2]")
    manifest["splits"]["test"]["words"] = "many"
    (folder / "words" / "preparation.json").write_text(json.dumps(manifest))
    (folder / "sizes" / "preparation.json").write_text('{"files": {"dict.txt": "big"}}')
    (folder / "dictionary" / "dict.txt").write_bytes(b"\xff\xfe\x00\x80" * 100)
    os.truncate(folder / "cut" / "test.bin", 100)
    os.truncate(folder / "cut-index" / "test.idx", 40)
    lines = (corpus / "dict.txt").read_text().splitlines()
    (folder / "order" / "dict.txt").write_text("\n".join(lines[::-1]) + "\n")
    for split in ("train", "test"):
        index = (corpus / f"{split}.idx").read_bytes()
        (folder / "rows" / f"{split}.idx").write_bytes(index[:18] + bytes(8))
        (folder / "rows" / f"{split}.bin").write_bytes(b"")


def damaged_weights(folder: Path, checkpoint: Path) -> None:
    """Copies of a checkpoint without one of its weights, and with two that its model does not have."""
    state = torch.load(checkpoint, weights_only=True)
    name = next(name for name in state["model"] if name.endswith(".q_proj.weight"))
    others = {"decoder.x": torch.zeros(1), "decoder.y": torch.zeros(1)}
    without = {key: x for key, x in state["model"].items() if key != name}
    torch.save({**state, "model": without}, folder / "missing.pt")
    torch.save({**state, "model": {**state["model"], **others}}, folder / "extra.pt")


def check_wording(sentence: str) -> None:
    """One line without a full stop, which advises neither to remove anything nor to load unsafely."""
    assert "\n" not in sentence and not sentence.endswith(".")
    assert not re.search("remove|delete|weights_only", sentence)


@pytest.mark.parametrize(("command", "message"), offered(CASES), ids=str)
def test_commands_refuse_in_one_sentence(command, message, place, refused, monkeypatch, capfd):
    monkeypatch.chdir(place)
    if "configs/" in command:
        monkeypatch.chdir(ROOT)
    before = sorted(path for path in place.rglob("*"))
    sentence = refused(*command.split())
    check_wording(sentence)
    assert re.search(message, sentence), sentence
    assert "Traceback" not in "".join(capfd.readouterr())
    assert sorted(path for path in place.rglob("*")) == before


def contents(folder):
    """Every file below with its size, files in linked folders included."""
    paths = (Path(at, name) for at, _, names in os.walk(folder, followlinks=True) for name in names)
    return {path: path.stat().st_size for path in paths}


@pytest.mark.slow
@pytest.mark.parametrize(("command", "sign"), offered(RUNS), ids=str)
def test_commands_on_runs_refuse_in_one_sentence(command, sign, runs, refused, monkeypatch):
    monkeypatch.chdir(runs)
    name, *words = command.split()
    before = contents(runs)
    assert sign in refused(name, *words)
    after = contents(runs)
    shutil.rmtree(runs / "new", ignore_errors=True)  # of a training that failed as it began
    assert before.items() <= after.items()
    assert {path.name for path in after.keys() - before.keys()} <= LEFT


@pytest.mark.parametrize(
    "name", sorted(path.stem for path in (ROOT / "benchmarks").glob("*.py") if os.access(path, os.X_OK))
)
def test_a_python_without_torch_is_told_the_right_one(name):
    script = ROOT / "benchmarks" / f"{name}.py"
    command = [sys.executable, "-S", script]  # -S: no packages
    done = subprocess.run(command, capture_output=True, text=True, env={})
    assert done.returncode == 1
    assert done.stderr == f"error: not this project's Python; run .venv/bin/python benchmarks/{name}.py\n"


def test_help_of_a_benchmark_does_without_fairseq_which_logs():
    """In a process in which nothing has imported fairseq yet; one for all: each would only import more."""
    program = (
        "import runpy, sys\nsys.modules['fairseq'] = None\n"
        "for name in sys.argv[1:]:\n    runpy.run_path(f'benchmarks/{name}.py')\n"
    )
    names = ("lm_cost", "loss_cost", "lra_speed", "packed_cost", "speech_cost")
    done = subprocess.run([sys.executable, "-c", program, *names], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(("command", "message"), FAIRSEQ, ids=[command for command, _ in FAIRSEQ])
def test_plain_fairseq_refuses_in_one_sentence(command, message, place, monkeypatch):
    """The plugin's hook prints a UserError as one line, see tests/models/test_compat.py."""
    monkeypatch.chdir(place)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    name, *words = command.split()
    monkeypatch.setattr(sys, "argv", [f"fairseq-{name}", *words, "--user-dir", str(ROOT / "user_dir")])
    with pytest.raises(UserError, match=message) as refusal:
        importlib.import_module(f"fairseq_cli.{name}").cli_main()
    check_wording(str(refusal.value))
    assert not [*place.rglob("crash.pt")]


@pytest.mark.parametrize(
    ("gpus", "settings", "environment", "refused"),
    [
        (2, {}, (), False),
        (1, {}, (), True),
        (1, {"distributed_init_method": "tcp://node0:29500"}, (), False),
        (0, {"distributed_init_method": "tcp://node0:29500"}, (), True),
        (0, {"distributed_no_spawn": True}, (), False),
        (1, {}, ("MASTER_ADDR", "MASTER_PORT", "WORLD_SIZE", "RANK"), False),
        (1, {}, ("SLURM_JOB_NODELIST",), False),
        (0, {}, ("SLURM_JOB_NODELIST",), True),
        (2, {"cpu": True}, (), True),
        (2, {"cpu": True, "distributed_init_method": "tcp://127.0.0.1:29500"}, (), True),
        (2, {"cpu": True, "distributed_no_spawn": True}, (), False),
        (2, {"cpu": True}, ("MASTER_ADDR", "MASTER_PORT", "WORLD_SIZE", "RANK"), False),
    ],
)
def test_processes_that_fairseq_would_not_start(gpus, settings, environment, refused, monkeypatch):
    """More processes than visible GPUs; other machines', torchrun's and Slurm's processes do not count."""
    training = {"distributed_world_size": 2, "distributed_init_method": None, "distributed_no_spawn": False}
    common = Namespace(tpu=False, cpu=settings.get("cpu", False))
    cfg = Namespace(distributed_training=Namespace(**training | settings), common=common)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
    monkeypatch.setattr(shutil, "which", lambda name: f"/usr/bin/{name}")
    for name in environment:
        monkeypatch.setenv(name, "1")
    with pytest.raises(UserError, match="is 2, but") if refused else nullcontext():
        check_processes(cfg)


@pytest.mark.parametrize(
    ("words", "environment", "processes"),
    [
        ("training --cpu", (), 1),
        ("training --cpu --distributed-world-size 3", (), 3),
        ("training --cpu --distributed-init-method=tcp://127.0.0.1:29500", (), 2),
        ("training --cpu", ("MASTER_ADDR", "MASTER_PORT", "WORLD_SIZE", "RANK"), 2),
        ("training", (), 2),
        ("eval_lm --path x.pt", (), 1),
    ],
)
def test_the_number_of_processes_that_is_not_given_on_two_gpus(words, environment, processes, monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    for name in environment:
        monkeypatch.setenv(name, "1")
    kind, *rest = words.split()
    model = "--task language_modeling" + " --arch transnormer_t1" * (kind == "training")
    parser = getattr(options, f"get_{kind}_parser")()
    parsed = options.parse_args_and_arch(parser, ["data", *model.split(), *rest])
    assert parsed.distributed_world_size == processes
