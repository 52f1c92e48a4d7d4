"""Bad input to every command, all in one process: each ends in one sentence, before anything is written."""

import importlib
import json
import re
import runpy
import shutil
import subprocess
import sys
from argparse import Namespace
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path
from types import ModuleType

import pytest
import torch

from pipeline.files import ROOT
from tests.helpers.evil import Evil
from user_dir.checks.training import check_processes
from user_dir.errors import UserError


@pytest.fixture(scope="module")
def place(corpus, config, trained, pretrained, encoder_corpus, tmp_path_factory) -> Iterator[Path]:
    """A folder with sound and damaged files, under the names that the table below uses."""
    folder = tmp_path_factory.mktemp("bad input")
    for name, source in (("data", corpus), ("lm", trained), ("encoder", pretrained), ("mlm", encoder_corpus)):
        (folder / name).symlink_to(source)
    (folder / "config.yaml").symlink_to(config)
    (folder / "base.yaml").symlink_to(config.with_name("base.yaml"))
    (folder / "latin.yaml").write_bytes("model: {_name: café}\n".encode("latin-1"))
    (folder / "binary.yaml").write_bytes(bytes(range(256)) * 4)
    (folder / "misspelt.yaml").write_text("defaults: [_self_, bsae]\n")
    (folder / "five.yaml").write_text("defaults: [_self_, base]\noptimization: 5\n")
    (folder / "number.yaml").write_text("1: {lr: [0.1]}\n")
    damaged_data(folder, corpus)
    (folder / "text.pt").write_text("no checkpoint\n" * 50)
    torch.save({"model": {"decoder.x": torch.zeros(1)}, "cfg": {"model": {}}}, folder / "fake.pt")
    torch.save({"model": {"decoder.x": torch.zeros(1)}, "cfg": ["model"]}, folder / "list.pt")
    for task in ("lra", "pixels"):
        torch.save({"model": {}, "cfg": {"task": {"_name": task}}}, folder / f"{task}.pt")
    torch.save({"model": {"decoder.x": torch.zeros(1)}, "cfg": Evil(folder / "trace")}, folder / "code.pt")
    fields = {"model": {"_name": "no_such"}, "task": {"tokens_per_sample": "many"}}
    torch.save({"model": {"decoder.x": torch.zeros(1)}, "cfg": fields}, folder / "words.pt")
    (folder / "empty").mkdir()
    yield folder
    assert not (folder / "trace").exists()


def damaged_data(folder: Path, corpus: Path) -> None:
    """Copies of the corpus, each with one file damaged."""
    manifest = json.loads((corpus / "preparation.json").read_text())
    for name in ("list", "words", "sizes", "dictionary", "rows", "order"):
        shutil.copytree(corpus, folder / name)
        (folder / name / "preparation.json").unlink()
    (folder / "list" / "preparation.json").write_text("[1, 2]")
    manifest["splits"]["test"]["words"] = "many"
    (folder / "words" / "preparation.json").write_text(json.dumps(manifest))
    (folder / "sizes" / "preparation.json").write_text('{"files": {"dict.txt": "big"}}')
    (folder / "dictionary" / "dict.txt").write_bytes(b"\xff\xfe\x00\x80" * 100)
    lines = (corpus / "dict.txt").read_text().splitlines()
    (folder / "order" / "dict.txt").write_text("\n".join(lines[::-1]) + "\n")
    for split in ("train", "test"):
        index = (corpus / f"{split}.idx").read_bytes()
        (folder / "rows" / f"{split}.idx").write_bytes(index[:18] + bytes(8))
        (folder / "rows" / f"{split}.bin").write_bytes(b"")


NO_COUNT = "'0' is not a whole number of 1 or more"
EVAL = "evaluation.eval_ppl"
TRAIN_LM = "scripts/train_lm.sh"
TRAIN = f"{TRAIN_LM} config.yaml data --gpus 0 --save-dir new"
CASES = [
    # what is no checkpoint of the right kind
    (f"{EVAL} encoder/checkpoint_last.pt data", "holds an encoder, no language model"),
    (f"{EVAL} text.pt data", "is damaged or no checkpoint"),
    (f"{EVAL} fake.pt data", "its configuration cannot be read"),
    (f"{EVAL} list.pt data", "its configuration cannot be read"),
    (f"{EVAL} words.pt data", "its configuration cannot be read"),
    ("scripts/eval_mlm.sh lm/checkpoint_last.pt mlm --out new", "holds no RoBERTa encoder"),
    ("scripts/eval_mlm.sh text.pt mlm", "is damaged or no checkpoint"),
    ("evaluation.predict_glue text.pt --task RTE --input config.yaml", "."),
    # evaluations that would lie
    (f"{EVAL} lm/checkpoint_last.pt data --tokens-per-sample 4096", "was trained for 32 positions"),
    (f"{EVAL} lm/checkpoint_last.pt data --tokens-per-sample 0", "--tokens-per-sample is 0"),
    (f"{EVAL} lm/checkpoint_last.pt data --context-window 300", "--context-window is 300; .*, such as 16$"),
    (f"{EVAL} lm/checkpoint_last.pt data --batch-size 0", "--batch-size is 0"),
    (f"{EVAL} lm/checkpoint_last.pt data --model-overrides {{", "--model-overrides is '{'"),
    (f"{EVAL} lm/checkpoint_last.pt data --model-overrides open(1)", "--model-overrides is 'open"),
    (f"{EVAL} lm/checkpoint_last.pt data --model-overrides [1]", "--model-overrides is"),
    (f"{EVAL} lm/checkpoint_last.pt data --out empty", "which is a folder"),
    (f"{EVAL} lm/checkpoint_last.pt data --split none", "has no split none; it has train, valid, test$"),
    (f"{EVAL} lm/checkpoint_last.pt data --split valid,", "--split: 'valid,' is not one name"),
    ("scripts/eval_mlm.sh encoder/checkpoint_last.pt mlm --split dev", "has no split dev; it has train, "),
    ("scripts/eval_mlm.sh encoder/checkpoint_last.pt mlm --split ,", "--split: ',' is not one name"),
    # images and Long Range Arena
    ("evaluation.sample_images none/checkpoint_best.pt", "no checkpoint .*none/checkpoint_best.pt; name one"),
    ("export.export_hf lra.pt new", "a model of Long Range Arena; only language models and RoBERTa encoders"),
    ("scripts/analyse.sh attention lra.pt --data empty", "of Long Range Arena; .* can be analysed$"),
    ("scripts/analyse.sh bounds pixels.pt --data empty", "holds a model of images; .* can be analysed$"),
    (
        "scripts/analyse.sh attention lm/checkpoint_last.pt --data data --split dev",
        "has no split dev; it has",
    ),
    # what is imported
    ("export.import_hf empty mlm new", "empty holds no config.json; name the folder with config.json"),
    ("export.import_hf empty mlm new --arch foo", "no encoder 'foo'; choose one of .*roberta_lln, "),
    # damaged data
    (f"{EVAL} lm/checkpoint_last.pt list", "preparation.json is damaged"),
    (f"{EVAL} lm/checkpoint_last.pt words", "preparation.json is damaged"),
    (f"{EVAL} lm/checkpoint_last.pt sizes", "preparation.json is damaged"),
    (f"{EVAL} lm/checkpoint_last.pt dictionary", "dict.txt is no text"),
    (f"{EVAL} lm/checkpoint_last.pt rows", "the test split of .* has no row"),
    (f"{TRAIN_LM} config.yaml rows --gpus 0 --save-dir new", "the train split of .* has no row"),
    (f"{TRAIN_LM} config.yaml list --gpus 0 --save-dir new", "preparation.json is damaged"),
    # configurations
    (f"{TRAIN_LM} latin.yaml data --gpus 0", "latin.yaml cannot be read"),
    (f"{TRAIN_LM} binary.yaml data --gpus 0", "binary.yaml cannot be read"),
    (f"{TRAIN_LM} configs/wikitext2/transnormer_t3.yaml", "nearest in .* are c[^,]*, [^,]*, [^,]*$"),
    (
        f"{TRAIN_LM} misspelt.yaml data --gpus 0",
        "no .*/bsae.yaml, which the defaults .*; did you mean base?",
    ),
    (f"{TRAIN_LM} five.yaml data --gpus 0", "five.yaml: optimization is 5; write settings below it"),
    (f"{TRAIN_LM} number.yaml data --gpus 0", "number.yaml: 1 is no group of settings"),
    (f"{TRAIN_LM} empty data --gpus 0", "CONFIG is the folder empty; name one of its YAML files: none"),
    (f"{TRAIN} --arch lra_skyformer", "--arch lra_skyformer does not go with .*yaml, which sets decoder"),
    ("scripts/eval_mlm.sh encoder/checkpoint_last.pt mlm --out=", "--out: it is empty; name a file"),
    (f"{TRAIN_LM} config.yaml data --gpus 0 --save-dir data/run", "prepared data; choose another --save-"),
    ("studies.report.report text.pt", "RUNS: .*text.pt is a file"),
    (f"{TRAIN_LM} text.pt data --gpus 0", "text.pt is no configuration: its name does not end in .yaml"),
    # flags, found out before the folder of the run is made
    (f"{TRAIN_LM} config.yaml data --gpus -1", "--gpus is -1; it must be 0 or more"),
    (f"{TRAIN_LM} config.yaml data --gpus 0 --save-dir text.pt", "text.pt is a file; name a folder"),
    (f"{TRAIN_LM} config.yaml data --gpus 0 --save-dir /proc/no/run", "--save-dir .* cannot be written into"),
    (f"{TRAIN} --max-update abc", "--max-update: invalid"),
    (f"{TRAIN} --update-freq 0", "--update-freq is .0.; it must be a whole number from 1 up"),
    (f"{TRAIN} --update-freq abc", "--update-freq: expected numbers such as 1"),
    (f"{TRAIN} --batch-size 0", "--batch-size is 0"),
    (f"{TRAIN} --batch-size -3", "--batch-size is -3"),
    (f"{TRAIN} --tokens-per-sample 0", "--tokens-per-sample is 0"),
    (f"{TRAIN} --lr nan", "--lr: expected numbers such as 1 or 1,2, not 'nan'"),
    (f"{TRAIN} --lr -1", "--lr is .-1.0., but must be positive"),
    (f"{TRAIN} --task masked_lm", "not for train_lm.sh; leave it out, or .* scripts/pretrain_roberta.sh"),
    (f"{TRAIN} --criterion masked_lm", "is for encoders, but transnormer_t1 is a language model"),
    (f"{TRAIN} --fp16", "--fp16 scales its loss on a GPU; on the CPU take --bf16"),
    (f"{TRAIN} --fp16 --bf16", "--fp16 and --bf16 .* exclude each other"),
    (f"{TRAIN} --dropout nan", "--dropout is nan"),
    (f"{TRAIN} --clip-norm inf", "--clip-norm is inf"),
    (f"{TRAIN} --lln-a nan", "--lln-a is nan"),
    (f"{TRAIN} --cosformer-length nan", "--cosformer-length"),
    (f"{TRAIN} --no-such-flag 1", "unrecognized arguments: --no-such-flag"),
    (f"{TRAIN} --decoder-attention diag*99999999999", "is not a number of layers at character 1"),
    (f"{TRAIN} --arch transnormer_t9", "--arch is 'transnormer_t9'.* transnormer_t1"),
    # data-prep
    ("data.masked_lm text --from empty --dest new --tokenizer sentencepiece --vocab-size 0", NO_COUNT),
    ("data.wikitext wikitext-2 --dest new --tokenizer sentencepiece --vocab-size 0", NO_COUNT),
    ("data.bundled_corpus --dest new --vocab-size 0", NO_COUNT),
    ("data.wikitext wikitext-2 --dest new/folder --from none", "none .given with --from. does not exist"),
    ("data.masked_lm text --from none --dest new/data", "none .* does not exist"),
    ("data.lra.prepare text --from none --dest new", "there is no none"),
    (
        "data.glue empty --tokenizer-from mlm --dest new",
        "holds none of GLUE's tasks; name the folder .* CoLA, ",
    ),
    # studies
    ("study.study copy --preset tiny --out new --lr x", "no option --lr; .*fairseq-train come after --"),
    ("study.study copy --preset tiny --out new --method nothing", "--method"),
    ("studies.quickstart --updates 0", NO_COUNT),
    ("study.study ablations --ablation nothing --out new", "--ablation"),
    ("study.study roberta_glue --data none --out new", "--data .*none: there is no such folder"),
    ("study.study roberta_glue --start none.pt --out new", "no checkpoint .*none.pt"),
    ("study.study roberta --method lnl --out new", "--method lnl: .* did you mean lln"),
    (
        "study.finetune_glue encoder/checkpoint_last.pt --learning-rates inf",
        "'inf' is not one or several numbers",
    ),
    ("study.finetune_glue encoder/checkpoint_last.pt --data empty", "no prepared task"),
    ("study.study nothing", "there is no study nothing; choose from .*ablations"),
]
BENCHMARKS = [
    ("operator_cost --out new --lengths 0", "--lengths: '0' is not a whole number"),
    ("operator_cost --out new --dim -1", "--dim: '-1' is not a whole number"),
    ("operator_cost --out config.yaml", "cannot write .*config.yaml.*; choose another --out"),
    ("operator_cost --out /proc/none", "cannot write /proc/none"),
    ("operator_cost --out new --fast-transformers none", "none holds no fast-transformers"),
    ("packed_cost data --out config.yaml", "cannot write config.yaml.*; choose another --out"),
    ("loss_cost --out config.yaml --restart", "cannot write .*config.yaml.*; choose another --out"),
    ("model_parts_cost --out config.yaml", "cannot write .*config.yaml.*; choose another --out"),
    ("lm_cost --quick --out empty", "empty, which is a folder; name a file with --out"),
    ("lm_cost --quick --out /proc/none/new.json", "cannot write /proc/none/new.json"),
    ("operator_cost --out new --rounds 0", "--rounds: '0' is not a whole number"),
    ("lm_cost --out new --memory-limit-gib 0", "--memory-limit-gib: '0' is not a number above 0"),
    ("lra_speed --out new --memory-limit-gib 0.5", "PyTorch and fairseq need to start; give 1 or more"),
    ("lm_cost --out new --time-limit nan", "--time-limit: 'nan' is not a number above 0"),
    ("lm_cost --out new --architectures nothing", "unknown architecture"),
]


LM = "--task language_modeling --sample-break-mode none --tokens-per-sample 32 --batch-size 8 --cpu"
EVAL_LM = f"eval_lm data {LM.replace('--task language_modeling ', '')} --path"
FAIRSEQ_TRAIN = (
    f"train data {LM} --arch transnormer_t1 --decoder-layers 2 --decoder-embed-dim 16 "
    "--decoder-attention-heads 2 --optimizer adam --lr 0.01 --max-update 1 --no-save"
)
INTERACTIVE = "interactive data --task language_modeling --cpu --path lm/checkpoint_last.pt --input"
OTHER_DATA = FAIRSEQ_TRAIN.replace(" data ", " order ")
CANNOT_BE_READ = "is no checkpoint of fairseq's: its configuration cannot be read"
NOT_ITS_OWN = "is not the one the model was trained with"
ENCODER = "is an encoder, which cannot model language"
# fairseq's own commands with the plugin.
FAIRSEQ = [
    (f"{EVAL_LM} encoder/checkpoint_last.pt", ENCODER),
    (f"{EVAL_LM} text.pt", "is damaged or no checkpoint"),
    (f"{EVAL_LM} code.pt", "nothing in it was run"),
    (f"{EVAL_LM} fake.pt", CANNOT_BE_READ),
    (f"{EVAL_LM} list.pt", CANNOT_BE_READ),
    (f"{EVAL_LM} words.pt", CANNOT_BE_READ),
    (f"{EVAL_LM} empty", "is a folder where a checkpoint belongs"),
    (f"{EVAL_LM} none.pt", "no checkpoint none.pt"),
    (f"{EVAL_LM} lm/checkpoint_last.pt".replace(" data ", " dictionary "), "dict.txt is no dictionary"),
    (f"{EVAL_LM} lm/checkpoint_last.pt".replace(" data ", " empty "), "no dictionary empty/dict.txt"),
    (f"{EVAL_LM} lm/checkpoint_last.pt".replace(" data ", " rows "), "test.bin is empty: the split holds"),
    (f"{EVAL_LM} lm/checkpoint_last.pt".replace(" data ", " order "), NOT_ITS_OWN),
    (f"generate data {LM} --prefix-size 2 --path encoder/checkpoint_last.pt", ENCODER),
    (f"generate data {LM} --prefix-size 2 --path text.pt", "is damaged or no checkpoint"),
    ("validate data --task language_modeling --batch-size 8 --cpu --path code.pt", "nothing in it was run"),
    (f"{FAIRSEQ_TRAIN} --restore-file text.pt", "is damaged or no checkpoint"),
    (f"{FAIRSEQ_TRAIN} --restore-file code.pt", "nothing in it was run"),
    (f"{FAIRSEQ_TRAIN} --restore-file list.pt", CANNOT_BE_READ),
    (f"{FAIRSEQ_TRAIN} --ddp-backend fully_sharded", "needs the package fairscale, which is not installed"),
    (f"{FAIRSEQ_TRAIN} --restore-file empty", "is a folder where a checkpoint belongs"),
    (f"{FAIRSEQ_TRAIN} --finetune-from-model text.pt", "is damaged or no checkpoint"),
    (f"{OTHER_DATA} --restore-file lm/checkpoint_last.pt", NOT_ITS_OWN),
    (f"{OTHER_DATA} --finetune-from-model lm/checkpoint_last.pt", NOT_ITS_OWN),
    (
        f"{FAIRSEQ_TRAIN} --decoder-embed-dim 32 --dropout 0 --restore-file lm/checkpoint_last.pt",
        "decoder_embed_dim is 16, not 32",
    ),
    (
        f"{FAIRSEQ_TRAIN} --decoder-embed-dim 32 --dropout 0 --restore-file lm/checkpoint_last.pt "
        "--allow-changed decoder_embed_dim",
        "does not fit the model: size mismatch for .*; give the settings it was trained with",
    ),
    (FAIRSEQ_TRAIN.replace("--batch-size 8 ", ""), "the batch has no size; give --batch-size or"),
    (f"{FAIRSEQ_TRAIN} --lr -1", "--lr is .-1.0., but must be positive"),
    (f"{FAIRSEQ_TRAIN} --seed -1", "--seed is -1; it must be at least 0 and at most 4294967295"),
    (f"{FAIRSEQ_TRAIN} --max-update -5", "--max-update is -5; it must be at least 0$"),
    (f"{FAIRSEQ_TRAIN} --log-interval 0", "--log-interval is 0; it must be a whole number from 1 up"),
    (f"{FAIRSEQ_TRAIN} --adam-betas 0.9", "--adam-betas is '0.9'; give two numbers"),
    (f"{FAIRSEQ_TRAIN} --save-dir text.pt", "--save-dir text.pt: .*/text.pt is a file; name a folder"),
    (f"{FAIRSEQ_TRAIN} --tensorboard-logdir text.pt/runs", "--tensorboard-logdir .*/text.pt is a file; name"),
    (f"{FAIRSEQ_TRAIN} --distributed-world-size 2", "this machine has 0; start each process yourself with"),
    (
        f"{FAIRSEQ_TRAIN} --distributed-world-size 2 --distributed-init-method tcp://127.0.0.1:9",
        "size is 2, but .* --distributed-no-spawn, --distributed-rank and --distributed-init-method tcp",
    ),
    (f"{EVAL_LM} lm/checkpoint_last.pt --distributed-world-size 2", "--distributed-world-size is 2, but"),
    (f"{FAIRSEQ_TRAIN} --fp16", "--fp16 scales its loss on a GPU"),
    (f"{FAIRSEQ_TRAIN} --fp16 --amp", "--fp16 and --amp exclude each other"),
    (f"{FAIRSEQ_TRAIN} --fp16 --bf16", "--fp16 and --bf16 .* exclude each other"),
    (f"{FAIRSEQ_TRAIN} --criterion masked_lm", "is for encoders, but transnormer_t1 is a language model"),
    (f"{FAIRSEQ_TRAIN} --criterion adaptive_loss", "add --adaptive-softmax-cutoff, such as"),
    (
        f"{FAIRSEQ_TRAIN} --criterion adaptive_loss --adaptive-softmax-cutoff 9,20",
        "add --ddp-backend legacy_ddp",
    ),
    (f"{FAIRSEQ_TRAIN} --task masked_lm", "--arch transnormer_t1 needs the setting .* --task masked_lm does"),
    (f"{INTERACTIVE} none.txt", "no file none.txt to read"),
    (f"{INTERACTIVE} empty", "--input is empty, a folder"),
    (f"{FAIRSEQ_TRAIN} --decoder-attention diag*99999999999", "'99999999999' is not a number of layers"),
    (
        f"{FAIRSEQ_TRAIN} --lr-scheduler cosine --warmup-updates 7 --max-update 7",
        "cosine would divide by zero with --warmup-updates 7 and --max-update 7",
    ),
    (f"{FAIRSEQ_TRAIN} --lr-scheduler inverse_sqrt --warmup-updates 0", "inverse_sqrt would divide by zero"),
    (f"{FAIRSEQ_TRAIN} --lr-scheduler tri_stage --decay-steps 0 --hold-steps 1", "tri_stage would divide"),
    (
        f"{FAIRSEQ_TRAIN} --lr-scheduler triangular --max-lr 1 --lr-period-updates 1",
        "triangular would divide",
    ),
    (f"{FAIRSEQ_TRAIN} --lr-scheduler step --lr-deacy-period 0", "step cannot be built: one of its settings"),
]


def module_of(command: str, package: str) -> tuple[ModuleType | str, list[str]]:
    name, *words = command.split()
    return (name if "/" in name else importlib.import_module(f"{package}.{name}")), words


def sentence_of(call: Callable[..., None], module: ModuleType | str, words: list[str]) -> str:
    """What a command says that ends as for a user's mistake."""
    with pytest.raises(SystemExit) as exit_:
        call(module, *words)
    assert str(exit_.value.code).startswith("error: ")
    check_wording(exit_.value.code)
    return exit_.value.code


def check_wording(sentence: str) -> None:
    """One line, which advises neither to remove anything nor to load unsafely."""
    assert "\n" not in sentence
    assert not re.search("remove|delete|weights_only", sentence)


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


def test_a_python_without_torch_is_told_the_right_one():
    command = [sys.executable, "-S", ROOT / "benchmarks" / "operator_cost.py"]  # -S: no packages
    done = subprocess.run(command, capture_output=True, text=True, env={})
    assert done.returncode == 1
    assert done.stderr == (
        "error: this Python has no torch; run .venv/bin/python benchmarks/operator_cost.py\n"
    )


@pytest.mark.parametrize("name", ["lm_cost", "loss_cost", "lra_speed", "packed_cost", "speech_cost"])
def test_help_of_a_benchmark_does_without_fairseq_which_logs(name, monkeypatch):
    for module in ("fairseq", "fairseq.data"):
        monkeypatch.setitem(sys.modules, module, None)
    runpy.run_path(str(ROOT / "benchmarks" / f"{name}.py"))


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
    ],
)
def test_processes_that_fairseq_would_not_start(gpus, settings, environment, refused, monkeypatch):
    """More than the visible GPUs: those of other machines, of torchrun and of Slurm are none of them."""
    training = {"distributed_world_size": 2, "distributed_init_method": None, "distributed_no_spawn": False}
    cfg = Namespace(distributed_training=Namespace(**training | settings), common=Namespace(tpu=False))
    monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
    monkeypatch.setattr(shutil, "which", lambda name: f"/usr/bin/{name}")
    for name in environment:
        monkeypatch.setenv(name, "1")
    with pytest.raises(UserError, match="is 2, but") if refused else nullcontext():
        check_processes(cfg)
