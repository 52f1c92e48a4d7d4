"""Bad input to the commands that train, evaluate and export: one line that names it, and nothing written.

Settings that no file can make right are in tests/pipeline/test_bad_input.py.
"""

import os
import pickle
import shutil
from pathlib import Path

import pytest
import torch

from pipeline.files import ROOT
from tests.helpers import tiny
from tests.helpers.evil import Evil
from tests.helpers.images import write_images

TRAIN_LM = "scripts/train_lm.sh lm.yaml data --gpus 0 --save-dir new"
TRAIN_VANILLA = TRAIN_LM.replace("lm.yaml", "vanilla.yaml")
TRAIN_LRA = "scripts/train_lra.sh lra.yaml listops --gpus 0 --save-dir new"
PLAN = "scripts/train_lra.sh text.yaml empty --gpus 0 --dry-run --encoder-attention"
RESUME = TRAIN_LM.replace("new", "run --max-update 9")
LM = "lm/checkpoint_last.pt"
EVAL_PPL = f"scripts/eval_ppl.sh {LM} data"
CARRIED = f"{EVAL_PPL} --carry-state"
SAMPLE = "scripts/sample_images.sh pixels/checkpoint_last.pt"
PREDICT = "scripts/predict_glue.sh rte/checkpoint_best.pt --out new.tsv --task"
EXPORT = f"scripts/export_hf.sh {LM}"
# What is no checkpoint, and what is said of it.
CHECKPOINTS = {
    "none": "no checkpoint", "nothing": "is damaged", "half": "is damaged", "foreign": "holds no model",
    "bare": "holds no configuration", "evil": "nothing in it was run", "pickled": "nothing in it was run",
}  # fmt: skip
# Copies of the corpus with one file cut to so many bytes, or without it, and what is said of it.
CUT = {
    "shorter-bin": ("train.bin", -2, "train.bin holds"),
    "magic": ("train.idx", 7, "train.idx is no index"),
    "shorter-idx": ("train.idx", -8, "train.idx is truncated"),
    "no-valid": ("valid.idx", None, "has no valid.idx"),
    "no-dict": ("dict.txt", None, "has no dict.txt"),
    "manifest": ("preparation.json", 1, "preparation.json is damaged"),
    "shorter-test": ("test.bin", -1, "test.bin holds"),
}
KEPT = ("data.json", "dict.txt", "run.json")
HEADER = "index\tsentence1\tsentence2\tlabel\n"
ROWS = {
    "good": HEADER + "0\tA\tB\tentailment\n",
    "blank": HEADER + "0\tThe cat .\t\tentailment\n",
    "two": "index\tsentence1\tlabel\n0\tThe cat .\tentailment\n",
    "narrow": HEADER + "0\tThe cat .\tThe dog .\n",
    "label": HEADER + "0\tA\tB\tneutral\n",
    "header": HEADER,
    "empty": "",
    "cola": "x\t1\t\tThe cat sat .\n",
}
CASES = [
    # what cannot be trained
    (f"{TRAIN_VANILLA} --decoder-attention-heads 3", "--decoder-attention-heads"),
    (f"{TRAIN_VANILLA} --max-target-positions 8", "positions"),
    (f"{TRAIN_LM} --max-target-positions 8", "positions"),
    (f"{TRAIN_LM} --diag-block-size 0", "block"),
    (f"{TRAIN_LM} --decoder-attention diag,nrom", "'nrom'"),
    (f"{TRAIN_LM} --learning-rate 1", "--learning-rate"),
    (f"{TRAIN_LM} --lr-scheduler cosine --warmup-updates 7 --max-update 7", "--warmup-updates 7"),
    (f"{TRAIN_LRA} --max-positions 32", "longer than the 32"),
    (f"{TRAIN_LRA} --encoder-attention elu,nrom", "'nrom'"),
    (f"{TRAIN_LRA} --warmup-updates 1", "--warmup-updates is 1"),
    (f"{TRAIN_LRA} --pooling max", "--pooling"),
    (
        "scripts/train_lra.sh text.yaml empty --gpus 0 --dry-run --encoder-attention ell",
        "--encoder-attention",
    ),
    (
        "scripts/train_lra.sh text.yaml empty --gpus 0 --dry-run --encoder-attention elu*3",
        "--encoder-attention",
    ),
    ("scripts/train_lm.sh masked.yaml data --gpus 0 --save-dir new", "scripts/pretrain_roberta.sh"),
    # another run than the one whose folder it is
    (RESUME.replace("lm.yaml", "vanilla.yaml"), "arch is 'transnormer_t1', not 'transformer_lm'"),
    (f"{RESUME} --decoder-attention norm*2", "decoder_attention is None, not 'norm*2'"),
    (f"{RESUME} --tokens-per-sample 16", "--allow-changed tokens_per_sample"),
    (f"{RESUME} --dropout 0.5 --allow-changed attention_dropout", "--allow-changed dropout"),
    (RESUME.replace(" data ", " order "), "another dictionary"),
    # damaged data
    *((TRAIN_LM.replace(" data ", f" {name} "), CUT[name][2]) for name in CUT if name != "shorter-test"),
    *((EVAL_PPL.replace(" data", f" {name}"), CUT[name][2]) for name in ("shorter-test", "manifest")),
    (TRAIN_LM.replace(" data ", " nowhere "), "no data folder"),
    # what is no checkpoint, or none to start from
    *((f"scripts/eval_ppl.sh {name}.pt data", sign) for name, sign in CHECKPOINTS.items()),
    *((f"{TRAIN_LM} --restore-file {name}.pt", sign) for name, sign in CHECKPOINTS.items()),
    (f"{TRAIN_LM} --restore-file {LM} --decoder-embed-dim 32", "decoder_embed_dim is 16, not 32"),
    (f"{TRAIN_LM} --restore-file {LM} --criterion cross_entropy", "--criterion"),
    # perplexities that would lie
    (f"{EVAL_PPL} --context-window 32", "--context-window"),
    (f"{EVAL_PPL} --max-tokens 4", "--max-tokens"),
    (f"{EVAL_PPL} --num-shards 999 --shard-id 998", "not one token was evaluated"),
    (f"{EVAL_PPL} --no-such-flag", "--no-such-flag"),
    (f"{EVAL_PPL} --split valid,test --out x.json", "--out"),
    (f"{EVAL_PPL} --out /proc/none/x.json", "/proc/none/x.json"),
    (f"{EVAL_PPL} --streams 2", "--carry-state"),
    (EVAL_PPL.removesuffix(" data"), "DATA"),
    (EVAL_PPL.replace(" data", " order"), "order/dict.txt differs from"),
    (EVAL_PPL.replace(" data", " shorter"), "shorter/dict.txt has"),
    (EVAL_PPL.replace(" data", " nowhere"), "no data folder"),
    (f"{CARRIED} --segment 5000 --streams 3", "--segment"),
    (f"{CARRIED} --streams 100000", "--streams"),
    (f"{CARRIED} --reset-at-documents", "--reset-at-documents"),
    (f"{CARRIED} --context-window 4", "--context-window"),
    (f"{CARRIED} --tokens-per-sample 16", "--tokens-per-sample"),
    (f"{CARRIED} --segment 0", "--segment"),
    # other evaluations
    ("scripts/eval_mlm.sh encoder/checkpoint_last.pt tokeniser", "another tokeniser"),
    (f"scripts/evaluate_lra.sh {LM} listops --out new.json", "no model of Long Range Arena"),
    ("scripts/evaluate_lra.sh begun.pt listops", "incomplete"),
    (f"scripts/eval_images.sh {LM} --out new.json", "not of pixels or image_classification"),
    (f"scripts/eval_images.sh {LM} --out good.tsv", "evaluate it with scripts/eval_ppl.sh"),
    (f"{EVAL_PPL.replace(LM, 'pixels/checkpoint_last.pt')} --out good.tsv", "with scripts/eval_images.sh"),
    (f"{EVAL_PPL.replace(LM, 'pixels/checkpoint_last.pt')} --out new.json", "a model of images, no language"),
    ("scripts/eval_images.sh pixels/checkpoint_last.pt --split dev", "no split dev"),
    ("scripts/eval_images.sh pixels/checkpoint_last.pt levels", "4 x 3 x 1 of 6 levels, but"),
    (f"scripts/sample_images.sh {LM}", "not of pixels"),
    (f"{SAMPLE} --complete 1.5", "--complete is 1.5"),
    (f"{SAMPLE} --complete 0.05", "--complete 0.05"),
    (f"{SAMPLE} --complete 0.5 --count 12", "--count is 12"),
    (f"{SAMPLE} --batch-size 0", "--batch-size"),
    (f"{SAMPLE} --seed -1", "--seed is -1"),
    (f"{SAMPLE} --out /nowhere/x.png", "/nowhere/x.png"),
    # predictions
    (f"{PREDICT} RTE --input blank.tsv", "line 2"),
    (f"{PREDICT} RTE --input two.tsv", "'sentence2'"),
    (f"{PREDICT} RTE --input narrow.tsv", "3 columns instead of 4"),
    (f"{PREDICT} RTE --input label.tsv", "'neutral'"),
    (f"{PREDICT} RTE --input header.tsv", "header.tsv holds no example"),
    (f"{PREDICT} RTE --input empty.tsv", "line 1"),
    (f"{PREDICT} RTE --input nowhere.tsv", "nowhere.tsv"),
    (f"{PREDICT} RET --input good.tsv", "did you mean RTE?"),
    (f"{PREDICT} mnli --input good.tsv", "did you mean MNLI?"),
    (f"{PREDICT} CoLA --input cola.tsv", "fine-tuned for RTE, not for CoLA"),
    (f"{PREDICT} RTE --input good.tsv --out nowhere/out.tsv", "nowhere/out.tsv"),
    (f"{PREDICT} RTE --input good.tsv --no-such-flag", "--no-such-flag"),
    (
        f"{PREDICT} RTE --input good.tsv".replace("rte/checkpoint_best", "encoder/checkpoint_last"),
        "no classif",
    ),
    # exports
    (f"{EXPORT} thesis", "export_hf.sh has not written"),
    (f"{EXPORT.replace('last', 'none')} new", "no checkpoint"),
    ("scripts/export_hf.sh alone/checkpoint_last.pt new", "dict.txt is missing"),
    (f"{EXPORT} new --head x", "'x'"),
]


@pytest.fixture(scope="module")
def place(corpus, config, trained, pretrained, encoder_corpus, finetuned, tmp_path_factory):
    """A folder with sound and unfit files, under the names of the table."""
    folder = tmp_path_factory.mktemp("refusals")
    pixels = tiny.trained("pixels", tmp_path_factory)
    lra = tiny.write("lra_skyformer", tmp_path_factory.mktemp("lra"))
    links = {
        "data": corpus, "lm": trained, "encoder": pretrained, "lm.yaml": config,
        "vanilla.yaml": config.with_name("transformer_lm.yaml"), "base.yaml": config.with_name("base.yaml"),
        "lra.yaml": lra.config, "listops": lra.data, "pixels": pixels.run,
        "rte": finetuned / "RTE" / "0.01" / "seed1",
        "text.yaml": ROOT / "configs" / "lra_skyformer" / "text.yaml",
    }  # fmt: skip
    for name, source in links.items():
        (folder / name).symlink_to(source)
    for name, text in ROWS.items():
        (folder / f"{name}.tsv").write_text(text)
    shutil.copytree(trained, folder / "run")
    for name in ("order", "shorter", *CUT):
        shutil.copytree(corpus, folder / name)
    for name, (file, end, _) in CUT.items():
        content = (corpus / file).read_bytes()
        (folder / name / file).unlink()
        if end is not None:
            (folder / name / file).write_bytes(content[:end])
    shutil.copytree(encoder_corpus, folder / "tokeniser")
    lines = (corpus / "dict.txt").read_text().splitlines()
    (folder / "order" / "dict.txt").write_text("\n".join(lines[::-1]) + "\n")
    (folder / "shorter" / "dict.txt").write_text("\n".join(lines[:-1]) + "\n")
    (folder / "tokeniser" / "preparation.json").unlink()
    with (folder / "tokeniser" / "dict.txt").open("a") as file:
        file.write("more 1\n")
    (folder / "masked.yaml").write_text("task: {_name: masked_lm}\n")
    (folder / "new.tsv").write_text("index\tprediction\n0\tentailment\n")  # predictions, which stay
    (folder / "begun.pt").write_bytes(b"PK\x03\x04")
    (folder / "nothing.pt").write_bytes(b"")
    (folder / "half.pt").write_bytes((trained / "checkpoint_last.pt").read_bytes()[:5000])
    torch.save({"weights": torch.zeros(3)}, folder / "foreign.pt")
    torch.save({"model": {}, "cfg": None}, folder / "bare.pt")
    torch.save({"model": Evil(folder / "trace")}, folder / "evil.pt")
    (folder / "pickled.pt").write_bytes(pickle.dumps({"model": Evil(folder / "trace")}))
    write_images(folder / "levels", levels=6)
    for name in ("thesis", "alone", "empty"):
        (folder / name).mkdir()
    (folder / "thesis" / "thesis.txt").write_text("mine")
    shutil.copy(trained / "checkpoint_last.pt", folder / "alone")
    yield folder
    assert not (folder / "trace").exists()


def contents(folder):
    """Every file below, with its size, also those of the folders that are linked."""
    paths = (Path(at, name) for at, _, names in os.walk(folder, followlinks=True) for name in names)
    return {path: path.stat().st_size for path in paths}


@pytest.mark.slow
@pytest.mark.parametrize(("command", "sign"), CASES, ids=[command for command, _ in CASES])
def test_refused_in_one_line(command, sign, place, refused, monkeypatch):
    monkeypatch.chdir(place)
    name, *words = command.split()
    before = contents(place)
    assert sign in refused(name, *words)
    after = contents(place)
    assert before.items() <= after.items()
    # A training that failed as it began has left its folder.
    assert {path.name for path in after.keys() - before.keys()} <= {"train.log", ".run.lock", *KEPT}
    shutil.rmtree(place / "new", ignore_errors=True)
