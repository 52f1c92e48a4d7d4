"""The analyses of trained models, on tiny ones: figures, their content, and bad input in one sentence."""

import json
import shutil
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from lab.errors import UserError
from lab.figures import analyse, logged_runs, models
from lab.figures.analyse import SUBCOMMANDS, parse
from lab.figures.figure import Figure
from lab.figures.training import evenly_spaced
from lab.files import ROOT
from lab.run.process import run_fairseq
from tests.helpers import encoders
from tests.helpers.once import filled_once
from tests.helpers.tiny import train_run, write_experiment

FLAGS = ["--clip-norm", "0", "--max-update", "20"]
FLAGS += ["--save-interval-updates", "10", "--keep-interval-updates", "-1"]


@pytest.fixture(scope="module")
def runs(encoder_corpus, tmp_path_factory):
    """Runs of tiny encoders by name; they log every update, `tens` every tenth."""
    plans = {
        "softmax": ("roberta_softmax", ()),
        "tens": ("roberta_softmax", ("--log-interval", "10")),
        "lln": ("roberta_lln", ()),
        "fixed": ("roberta_lln", ("--lln-alpha", "2", "--lln-beta", "2")),
        "norm": ("roberta_linear", ("--encoder-attention", "norm")),
    }
    architectures = [architecture for architecture, _ in plans.values()]

    def fill(folder: Path) -> None:
        config = write_experiment(folder / "configs", encoders.BASE, *architectures)
        for name, (architecture, flags) in plans.items():
            config = config.with_name(f"{architecture}.yaml")
            train_run(config, encoder_corpus, folder / name, [*FLAGS, *flags])

    return filled_once(tmp_path_factory, "analysed runs", fill)


@pytest.mark.parametrize("what", sorted(SUBCOMMANDS))
def test_figures_of_a_user_never_meet_the_committed_ones(what):
    words = [what] if what == "report" else [what, "--redraw"]
    assert parse(words).out == ROOT / "runs" / "figures"
    assert str(parse([*words, "--out", "results/analysis"]).out) == "results/analysis"


def test_a_run_of_a_study_is_called_after_its_choice_and_seed(tmp_path):
    assert models.run_name(tmp_path / "full" / "spread-norm" / "seed2") == "spread-norm-seed2"
    assert models.run_name(tmp_path / "mine") == "mine"


@pytest.mark.parametrize(
    ("plan", "said"),
    [("mine*2", "no figure knows the attention 'mine'"), ("elu,lln", "mixes"), ("elu+lln*2", "mixes")],
)
def test_a_plan_that_no_figure_knows(plan, said):
    trained = SimpleNamespace(architecture="transnormer_t1", settings={"decoder_attention": plan})
    with pytest.raises(UserError, match=said):
        models.method_of(trained)


def record(out, what, name):
    path = out / what / f"{name}.json"
    assert path.with_suffix(".png").is_file()
    return json.loads(path.read_text())


def test_log_at_interval_1_averaged_in_tens_is_that_at_interval_10(runs):
    ones, tens = (models.read_logged_run(runs / name).series("gnorm") for name in ("softmax", "tens"))
    assert tens[0] == [10, 20]
    means = [sum(ones[1][i : i + 10]) / 10 for i in (0, 10)]
    assert means == pytest.approx(tens[1], abs=2e-3)


def test_gradients(runs, call, tmp_path, encoder_corpus):
    words = ("--out", tmp_path, "--at-checkpoints", "--minibatches", 3, "--data", encoder_corpus)
    call(analyse, "gradients", runs / "softmax", runs / "norm", *words)
    found = record(tmp_path, "gradients", "relative-deviation")
    assert found["deviations"].keys() == {"softmax", "norm"}
    assert found["panels"][1]["series"][1]["values"] == [
        logged_runs.published()[x] for x in ("softmax", "norm")
    ]
    assert found["training"]["updates"] == 20
    assert record(tmp_path, "gradients", "loss")["panels"][0]["curves"]
    noise = record(tmp_path, "gradients", "at-checkpoints")["by_layer"]["NormAttention"]
    assert noise.keys() == {"10", "20"}
    assert noise["10"].keys() == {"all parameters", "layer0", "layer1"}


def half(method: str, seed: int, inverse: float, alpha: float | None = None) -> models.LoggedRun:
    """A run in fp16 whose inverse loss scale is `inverse` in every update."""
    records = {update: {"loss_scale": 1 / inverse, "wpb": 8.0} for update in range(1, 9)}
    settings = {"lln_alpha": alpha, "decoder_layers": 1, "decoder_embed_dim": 8, "decoder_attention_heads": 1}
    return models.LoggedRun(Path(f"{method}-{seed}"), method, seed, 0, 4, records, {}, settings, "corpus")


@pytest.mark.parametrize(("largest", "verdict"), [(300, "contradicted"), (90, "confirmed")])
def test_every_seed_counts_in_the_loss_scales(largest, verdict):
    runs = [half("softmax", seed, 100 + seed) for seed in range(3)]
    runs += [half("lln", seed, largest + seed) for seed in range(3)]
    runs += [half("lln", seed, 1, alpha=2) for seed in range(3)]
    runs += [half("lln", seed, 2000 + seed, alpha=4) for seed in range(3)]
    steep, level = logged_runs._loss_scales(runs)["checks"]
    assert level["verdict"] == verdict and "3 seeds" in level["measured"]
    assert steep["verdict"] == "confirmed"


@pytest.mark.parametrize(
    ("other", "refused"),
    [
        (half("lln", 1, 5, alpha=2), True),
        (half("lln", 1, 5, alpha=4), False),
        (half("lln", 2, 5, alpha=2), False),
        (half("softmax", 1, 5), False),
    ],
)
def test_two_runs_of_one_method_and_seed_are_refused(other, refused):
    runs = [half("lln", 1, 5, alpha=2), replace(other, folder=Path("other"))]
    refusal = pytest.raises(UserError, match="a figure shows one of each")
    with refusal if refused else nullcontext():
        logged_runs.check_apart(runs)
    with refusal:  # one name
        logged_runs.check_apart(
            [replace(run, folder=Path(place, "one")) for run, place in zip(runs, "ab", strict=True)]
        )


def test_attention_of_trained_models(runs, call, tmp_path, encoder_corpus):
    paths = [runs / name / "checkpoint_last.pt" for name in ("softmax", "norm")]
    words = ("--data", encoder_corpus, "--sequences", 2, "--out", tmp_path)
    call(analyse, "attention", *paths, *words)
    scores = record(tmp_path, "attention", "local-score")
    titles = ["Early half of the layers", "Late half", "All layers"]
    assert [panel["title"] for panel in scores["panels"][:3]] == titles
    curve = scores["panels"][2]["curves"][0]
    assert curve["method"] == "softmax" and curve["y"][-1] == pytest.approx(1)
    assert curve["y"] == sorted(curve["y"])
    assert 0 < scores["excluded"]["NormAttention"][0]["negative_share"] < 1
    by_head = record(tmp_path, "attention", "concentration")["by_head"]["softmax"]["layer0"]
    assert by_head.keys() == {"entropy", "gap", "singular_value", "temperature", "row_temperature"}
    assert all(0 < bits <= 5 for bits in by_head["entropy"])
    maps = record(tmp_path, "attention", "maps")["panels"]
    assert len(maps) == 4 and torch.tensor(maps[0]["values"]).sum(1).allclose(torch.ones(32), atol=1e-4)
    heads = record(tmp_path, "attention", "log-normality")["by_head"]["softmax"]["layer1"]
    assert len(heads) == 2 and heads[0]["zero_share"] == 0
    picture = tmp_path / "attention" / "maps.png"
    drawn = picture.read_bytes()
    picture.unlink()
    call(analyse, "attention", "--redraw", "--out", tmp_path)  # names no checkpoint
    assert picture.read_bytes() == drawn


@pytest.mark.parametrize(
    "options", [("--rows", "sum", "--layers", "1"), ("--score", "appendix-f", "--masked")], ids=" ".join
)
def test_options_of_attention(runs, call, tmp_path, encoder_corpus, options):
    words = ("--data", encoder_corpus, "--sequences", 1, "--out", tmp_path, *options)
    call(analyse, "attention", runs / "lln" / "checkpoint_last.pt", *words)
    assert record(tmp_path, "attention", "local-score")["panels"]


def test_training_of_lln(runs, call, tmp_path, encoder_corpus):
    words = ("--data", encoder_corpus, "--sequences", 2, "--out", tmp_path)
    call(analyse, "training", runs / "lln", *words)
    found = record(tmp_path, "training", "lln")
    assert [panel["title"] for panel in found["panels"]] == ["Temperature", "Entropy", "Spectral gap"]
    assert found["panels"][1]["curves"][0]["x"] == [0, 10, 20]
    assert found["panels"][1]["curves"][0]["y"][0] == pytest.approx(5, rel=0.02)  # log2 of 32 tokens
    assert record(tmp_path, "training", "lln-exponents")["panels"][0]["curves"][0]["x"] == [10, 20]


@pytest.fixture(scope="module")
def language_model(config, corpus, tmp_path_factory):
    flags = [*FLAGS, "--decoder-attention", "softmax", "--tokens-per-sample", "64"]
    flags += ["--save-interval-updates", "6"]

    def fill(folder):
        train_run(config, corpus, folder / "softmax", flags)

    return filled_once(tmp_path_factory, "analysed language model", fill) / "softmax"


def test_language_models(language_model, call, tmp_path, corpus):
    """Entropies count only visible tokens; later tokens are not zeros."""
    words = ("--data", corpus, "--sequences", 2, "--out", tmp_path)
    call(analyse, "training", language_model, *words)
    found = record(tmp_path, "training", "softmax")
    assert found["panels"][1]["y_label"] == "H over log2 of the prefix's length"
    start, *moves = found["checks"]
    assert "of what is visible" in start["expected"], start
    # A causal gap says nothing.
    assert [panel["title"] for panel in found["panels"]] == ["Temperature", "Entropy"]
    assert [one["statement"].split()[0] for one in moves] == ["temperature", "entropy"]
    call(analyse, "attention", language_model / "checkpoint_last.pt", *words, "--length", 64)
    heads = record(tmp_path, "attention", "log-normality")["by_head"]["softmax"]["layer0"]
    assert heads[0]["zero_share"] == 0
    call(analyse, "gradients", language_model, "--out", tmp_path)
    assert record(tmp_path, "gradients", "loss")["training"]["layers"] == 2


def test_another_corpus_is_another_setting(language_model, call, refused, tmp_path, corpus):
    words = ("--sequences", 1, "--length", 64, "--out", tmp_path)
    path = language_model / "checkpoint_last.pt"
    call(analyse, "bounds", path, "--data", corpus, *words)
    other = shutil.copytree(corpus, tmp_path / "other")
    facts = json.loads((other / "preparation.json").read_text())
    facts["splits"]["valid"] = {}
    (other / "preparation.json").write_text(json.dumps(facts))
    assert "other settings" in refused(analyse, "bounds", path, "--data", other, *words)


def test_evenly_spaced_checkpoints():
    paths = [(update, Path()) for update in range(1, 22)]
    for most, expected in ((4, [3, 9, 15, 21]), (20, list(range(1, 22, 2))), (30, list(range(1, 22)))):
        assert [update for update, _ in evenly_spaced(paths, most)] == expected


@pytest.mark.parametrize("name", ["softmax", "norm", "lln"])
def test_bounds_hold_in_trained_models(runs, call, tmp_path, encoder_corpus, name):
    call(analyse, "bounds", runs / name / "checkpoint_last.pt", "--data", encoder_corpus, "--out", tmp_path)
    found = record(tmp_path, "bounds", name)
    assert found["layers"].keys() == {"layer0", "layer1"}
    held = {"softmax": "confirmed", "norm": "not comparable"}  # NormAttention's is 1e11 times too loose
    assert all(one["verdict"] == held[name] for one in found["checks"])
    assert bool(found["checks"]) is (name != "lln")


def test_bounded_gradients_are_those_of_the_scores(runs, encoder_corpus):
    """The closed form through the whole model against differences of the loss by one score."""
    from lab.figures import bounds

    data = models.open_prepared(encoder_corpus, ("valid",))
    trained = models.load(runs / "softmax" / "checkpoint_last.pt", data)
    tokens = torch.randint(5, 40, (2, 9))
    given = models.inputs(trained.model, tokens)[0]
    part = models.attentions(trained.model)["layer0"]
    with bounds.recording(part) as recorded:
        bounds._loss(trained, tokens).backward()
    largest = bounds._layer(given, recorded)["largest"]
    shift = torch.zeros(2, part.num_heads, 9, 9, requires_grad=True)

    def attend(q, k, v, padding):
        return (q @ k.mT * q.shape[-1] ** -0.5 + shift).softmax(-1) @ v

    part.attend = attend
    bounds._loss(trained, tokens).backward()
    assert largest == pytest.approx(shift.grad.abs().max().item(), rel=1e-4)


def test_losses_at_one_rate_decide_nothing():
    """Rule 7 of results/README.md; without it, twice the perplexity in all seeds would contradict."""
    figure = Figure("Loss in training")
    found = {
        name: [SimpleNamespace(seed=seed, valid={10: bits + seed / 1000}) for seed in (1, 2, 3)]
        for name, bits in (("lln", 6), ("softmax", 5))
    }
    logged_runs._check_follows(figure, found)
    [check] = figure.checks
    assert check["verdict"] == "not comparable"
    assert check["measured"].endswith("; one learning rate for all methods, tuned for none of them")


def test_temperature_and_tradeoff(runs, call, tmp_path):
    call(analyse, "temperature", runs / "lln", runs / "fixed", "--out", tmp_path)
    curves = record(tmp_path, "temperature", "fixed-exponents")["panels"][0]["curves"]
    assert [curve["label"] for curve in curves] == ["fixed", "matched"] and curves[0]["x"] == [2]
    call(analyse, "tradeoff", "--out", tmp_path)
    bubbles = {b["method"]: b for b in record(tmp_path, "tradeoff", "paper")["bubbles"]}
    assert len(bubbles) == 11
    from lab.papers import read_table

    speed = {row["model"]: row["train_2k"] for row in read_table("transnormer_07_lra_speed")}
    assert bubbles["cosformer"]["x"] == float(speed["cosFormer"])


@pytest.fixture(scope="module")
def convolutional(corpus, tmp_path_factory):
    """A run of fairseq's convolutional language model."""
    folder = tmp_path_factory.mktemp("convolutional")
    words = f"--user-dir {ROOT / 'user_dir'} --task language_modeling --arch fconv_lm --decoder-embed-dim 8 "
    words += "--decoder-out-embed-dim 8 --tokens-per-sample 32 --optimizer adam --lr 0.01 --batch-size 8 "
    words += f"--max-update 2 --cpu --no-epoch-checkpoints --save-dir {folder} --decoder-layers"
    arguments = [str(corpus), *words.split(), "[(8, 3)]"]
    run_fairseq("train", arguments, folder / "train.log")
    return folder


def test_user_errors(runs, convolutional, refused, tmp_path, encoder_corpus, corpus):
    last = runs / "softmax" / "checkpoint_last.pt"
    attention = ("attention", last, "--out", tmp_path, "--data")
    assert "or add --force" in refused(analyse, *attention, encoder_corpus, "--length", 4096)
    assert "was trained with sequences of 32; give 32 or less" in refused(
        analyse, *attention, encoder_corpus, "--length", 64
    )
    assert "give --data with that dictionary" in refused(analyse, *attention, corpus)
    assert "has no split nowhere; it has train" in refused(
        analyse, *attention, encoder_corpus, "--split", "nowhere"
    )
    assert "has layers 0 to 1" in refused(analyse, *attention, encoder_corpus, "--layers", "0,7")
    assert "same attention" in refused(analyse, "attention", last, *attention[1:], encoder_corpus)
    words = ("--data", corpus, "--out", tmp_path)
    found = refused(analyse, "attention", convolutional / "checkpoint_last.pt", *words)
    assert "has no attention" in found
    assert "no run" in refused(analyse, "gradients", tmp_path / "nowhere", "--out", tmp_path)
    assert "no run" in refused(analyse, "training", tmp_path / "nowhere", *words)
    assert "--log-interval 1" in refused(analyse, "gradients", runs / "tens", "--out", tmp_path)
    assert "name the prepared corpus" in refused(analyse, "gradients", runs / "lln", "--at-checkpoints")
    assert "--minibatches is for" in refused(analyse, "gradients", runs / "lln", "--minibatches", 3)
    assert "--data is for" in refused(analyse, "gradients", runs / "lln", "--data", encoder_corpus)
    assert "not an LLN run" in refused(analyse, "temperature", runs / "softmax", "--out", tmp_path)
    assert "has fixed exponents" in refused(analyse, "temperature", runs / "lln", "--out", tmp_path)
    assert not list(tmp_path.glob("*/*.json"))


def test_split_without_a_whole_sequence(runs, refused, tmp_path, encoder_corpus):
    short = tmp_path / "short"
    shutil.copytree(encoder_corpus, short)
    from fairseq.data import Dictionary, indexed_dataset

    (short / "preparation.json").unlink()
    builder = indexed_dataset.make_builder(
        str(short / "valid.bin"), "mmap", len(Dictionary.load(str(short / "dict.txt")))
    )
    builder.add_item(torch.tensor([5, 6, 2]))
    builder.finalize(str(short / "valid.idx"))
    last = runs / "softmax" / "checkpoint_last.pt"
    sentence = refused(analyse, "attention", last, "--data", short, "--out", tmp_path)
    assert "has 3 tokens, too few for one sequence of 32" in sentence
