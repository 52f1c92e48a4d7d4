"""Bad input to every command, all in one process: each ends in one sentence, before anything is written."""

import importlib
import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest
import torch

from pipeline.files import ROOT


@pytest.fixture(scope="module")
def place(corpus, config, trained, pretrained, encoder_corpus, tmp_path_factory) -> Path:
    """A folder with sound and damaged files, under the names that the table below uses."""
    folder = tmp_path_factory.mktemp("bad input")
    for name, source in (("data", corpus), ("lm", trained), ("encoder", pretrained), ("mlm", encoder_corpus)):
        (folder / name).symlink_to(source)
    (folder / "config.yaml").symlink_to(config)
    (folder / "base.yaml").symlink_to(config.with_name("base.yaml"))
    (folder / "latin.yaml").write_bytes("model: {_name: café}\n".encode("latin-1"))
    (folder / "binary.yaml").write_bytes(bytes(range(256)) * 4)
    damaged_data(folder, corpus)
    (folder / "text.pt").write_text("no checkpoint\n" * 50)
    torch.save({"model": {"decoder.x": torch.zeros(1)}, "cfg": {"model": {}}}, folder / "fake.pt")
    torch.save({"model": {"decoder.x": torch.zeros(1)}, "cfg": ["model"]}, folder / "list.pt")
    fields = {"model": {"_name": "no_such"}, "task": {"tokens_per_sample": "many"}}
    torch.save({"model": {"decoder.x": torch.zeros(1)}, "cfg": fields}, folder / "words.pt")
    (folder / "empty").mkdir()
    return folder


def damaged_data(folder: Path, corpus: Path) -> None:
    """Copies of the corpus, each with one file damaged."""
    manifest = json.loads((corpus / "preparation.json").read_text())
    for name in ("list", "words", "sizes", "dictionary", "rows"):
        shutil.copytree(corpus, folder / name)
        (folder / name / "preparation.json").unlink()
    (folder / "list" / "preparation.json").write_text("[1, 2]")
    manifest["splits"]["test"]["words"] = "many"
    (folder / "words" / "preparation.json").write_text(json.dumps(manifest))
    (folder / "sizes" / "preparation.json").write_text('{"files": {"dict.txt": "big"}}')
    (folder / "dictionary" / "dict.txt").write_bytes(b"\xff\xfe\x00\x80" * 100)
    for split in ("train", "test"):
        index = (corpus / f"{split}.idx").read_bytes()
        (folder / "rows" / f"{split}.idx").write_bytes(index[:18] + bytes(8))
        (folder / "rows" / f"{split}.bin").write_bytes(b"")


NO_COUNT = "'0' is not a whole number of 1 or more"
EVAL = "evaluation.perplexity"
TRAIN = "training.train config.yaml data --gpus 0 --save-dir new"
CASES = [
    # what is no checkpoint of the right kind
    (f"{EVAL} encoder/checkpoint_last.pt data", "holds an encoder, no language model"),
    (f"{EVAL} text.pt data", "is damaged or no checkpoint"),
    (f"{EVAL} fake.pt data", "its configuration cannot be read"),
    (f"{EVAL} list.pt data", "its configuration cannot be read"),
    (f"{EVAL} words.pt data", "its configuration cannot be read"),
    ("evaluation.masked_lm lm/checkpoint_last.pt mlm", "holds no RoBERTa encoder"),
    ("evaluation.masked_lm text.pt mlm", "is damaged or no checkpoint"),
    ("evaluation.predict_glue text.pt --task RTE --input config.yaml", "."),
    # evaluations that would lie
    (f"{EVAL} lm/checkpoint_last.pt data --tokens-per-sample 4096", "was trained for 32 positions"),
    (f"{EVAL} lm/checkpoint_last.pt data --tokens-per-sample 0", "--tokens-per-sample is 0"),
    (f"{EVAL} lm/checkpoint_last.pt data --batch-size 0", "--batch-size is 0"),
    (f"{EVAL} lm/checkpoint_last.pt data --model-overrides {{", "--model-overrides is '{'"),
    (f"{EVAL} lm/checkpoint_last.pt data --model-overrides open(1)", "--model-overrides is 'open"),
    (f"{EVAL} lm/checkpoint_last.pt data --model-overrides [1]", "--model-overrides is"),
    (f"{EVAL} lm/checkpoint_last.pt data --out empty", "which is a folder"),
    (f"{EVAL} lm/checkpoint_last.pt data --split none", "has no none.idx"),
    # damaged data
    (f"{EVAL} lm/checkpoint_last.pt list", "preparation.json is damaged"),
    (f"{EVAL} lm/checkpoint_last.pt words", "preparation.json is damaged"),
    (f"{EVAL} lm/checkpoint_last.pt sizes", "preparation.json is damaged"),
    (f"{EVAL} lm/checkpoint_last.pt dictionary", "dict.txt is no text"),
    (f"{EVAL} lm/checkpoint_last.pt rows", "the test split of .* has no row"),
    ("training.train config.yaml rows --gpus 0 --save-dir new", "the train split of .* has no row"),
    ("training.train config.yaml list --gpus 0 --save-dir new", "preparation.json is damaged"),
    # configurations
    ("training.train latin.yaml data --gpus 0", "latin.yaml cannot be read"),
    ("training.train binary.yaml data --gpus 0", "binary.yaml cannot be read"),
    ("training.train configs/wikitext2/transnormer_t3.yaml", "nearest in .* are c[^,]*, [^,]*, [^,]*$"),
    # flags, found out before the folder of the run is made
    (f"{TRAIN} --max-update abc", "--max-update: invalid"),
    (f"{TRAIN} --update-freq 0", "--update-freq is .0.; it must be a whole number from 1 up"),
    (f"{TRAIN} --update-freq abc", "--update-freq: expected numbers such as 1"),
    (f"{TRAIN} --batch-size 0", "--batch-size is 0"),
    (f"{TRAIN} --batch-size -3", "--batch-size is -3"),
    (f"{TRAIN} --tokens-per-sample 0", "--tokens-per-sample is 0"),
    (f"{TRAIN} --lr nan", "--lr: expected numbers such as 1 or 1,2, not 'nan'"),
    (f"{TRAIN} --dropout nan", "--dropout is nan"),
    (f"{TRAIN} --clip-norm inf", "--clip-norm is inf"),
    (f"{TRAIN} --lln-a nan", "--lln-a is nan"),
    (f"{TRAIN} --cosformer-length nan", "--cosformer-length"),
    (f"{TRAIN} --no-such-flag 1", "unrecognized arguments: --no-such-flag"),
    (f"{TRAIN} --arch transnormer_t9", "invalid choice: 'transnormer_t9'"),
    # data-prep
    ("data.masked_lm text --from empty --dest new --tokenizer sentencepiece --vocab-size 0", NO_COUNT),
    ("data.wikitext wikitext-2 --dest new --tokenizer sentencepiece --vocab-size 0", NO_COUNT),
    ("data.bundled_corpus --dest new --vocab-size 0", NO_COUNT),
    # studies
    ("studies.quickstart --updates 0", NO_COUNT),
    ("studies.language_models --only nothing", "names no run"),
    ("studies.encoders --only softmax --glue empty --out new", "has no folder"),
    ("studies.encoders --only softmax --out new", "name the folder of GLUE with --glue"),
    ("studies.glue_sweep encoder/checkpoint_last.pt --learning-rates inf", "invalid list of float"),
    ("studies.glue_sweep encoder/checkpoint_last.pt --data empty", "no prepared task"),
    ("studies.ablations nothing", "there is no ablation nothing"),
]
BENCHMARKS = [
    ("operator_cost --out new --lengths 0", "--lengths: '0' is not a whole number"),
    ("operator_cost --out new --dim -1", "--dim: '-1' is not a whole number"),
    ("operator_cost --out new --rounds 0", "--rounds: '0' is not a whole number"),
    ("lm_cost --out new --memory-limit-gib 0", "--memory-limit-gib: '0' is not a number above 0"),
    ("lm_cost --out new --time-limit nan", "--time-limit: 'nan' is not a number above 0"),
    ("lm_cost --out new --architectures nothing", "unknown architecture"),
]


def module_of(command: str, package: str) -> tuple[ModuleType, list[str]]:
    name, *words = command.split()
    return importlib.import_module(f"{package}.{name}"), words


def sentence_of(call: Callable[..., None], module: ModuleType, words: list[str]) -> str:
    """What a command says that ends as for a user's mistake."""
    with pytest.raises(SystemExit) as exit_:
        call(module, *words)
    assert str(exit_.value.code).startswith("error: ") and "\n" not in exit_.value.code
    return exit_.value.code


@pytest.mark.parametrize(("command", "message"), CASES, ids=[command for command, _ in CASES])
def test_commands_refuse_in_one_sentence(command, message, place, call, monkeypatch, capfd):
    monkeypatch.chdir(place)
    if "configs/" in command:
        monkeypatch.chdir(ROOT)
    module, words = module_of(command, "pipeline")
    before = sorted(path for path in place.rglob("*"))
    sentence = sentence_of(call, module, words)
    assert re.search(message, sentence), sentence
    assert "Traceback" not in "".join(capfd.readouterr())
    assert sorted(path for path in place.rglob("*")) == before


@pytest.mark.parametrize(("command", "message"), BENCHMARKS, ids=[command for command, _ in BENCHMARKS])
def test_benchmarks_refuse_in_one_sentence(command, message, place, call, monkeypatch):
    monkeypatch.chdir(place)
    module, words = module_of(command, "benchmarks")
    sentence = sentence_of(call, module, words)
    assert re.search(message, sentence), sentence
    assert not (place / "new").exists()
