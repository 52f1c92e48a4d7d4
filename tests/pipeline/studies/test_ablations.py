"""run_ablations.sh: what its configurations differ in, what is skipped, what fails, and the table."""

import json
from functools import cache

import pytest
from fairseq.models import MODEL_DATACLASS_REGISTRY
from omegaconf import OmegaConf

from pipeline.errors import UserError
from pipeline.files import ROOT
from pipeline.papers import read_table
from pipeline.studies import ablations as run_ablations
from pipeline.studies.ablations import ABLATIONS, T1_AND_T2
from pipeline.training import train as train_lm
from pipeline.training.recipe import read_experiment
from user_dir.models.layer_plan import parse_layer_plan

STUDIED = {
    # NormAttention has the feature map and the positions of 1+elu here, so that the norm alone differs.
    "ablation_01_scaling": {"encoder_attention", "elu_normalizer", "norm_feature_map", "norm_positions"},
    "ablation_03_dilution": {"encoder_attention"},
    "ablation_08_proportion": {"encoder_attention"},
    "ablation_09_order": {"encoder_attention"},
    "ablation_10_ffn": {"encoder_ffn", "encoder_ffn_activation"},
    "ablation_11_block_size": {"diag_block_size"},
    "ablation_12_combination": {"encoder_attention"},
}
D, N, E, S = ("diag",), ("norm",), ("elu",), ("softmax",)
PLANS = {
    "ablation_01_scaling": {"elu": [E] * 12, "elu_unscaled": [E] * 12, "norm": [N] * 12},
    "ablation_03_dilution": {
        "elu_elu": [E] * 12,
        "elu_softmax": [E] * 6 + [S] * 6,
        "softmax_elu": [S] * 6 + [E] * 6,
    },
    "ablation_08_proportion": {f"diag{n}": [D] * n + [N] * (12 - n) for n in (0, 3, 6, 9, 12)},
    "ablation_09_order": {"norm_diag": [N] * 6 + [D] * 6, "diag_norm": [D] * 6 + [N] * 6},
    "ablation_12_combination": {
        "alternating_diag_norm": [D, N] * 6,
        "alternating_norm_diag": [N, D] * 6,
        "parallel": [("diag", "norm")] * 12,
        "transnormer": [D] * 6 + [N] * 6,
    },
}
TINY = [
    "--gpus", 0, "--encoder-embed-dim", 12, "--encoder-attention-heads", 2, "--encoder-ffn-embed-dim", 12,
    "--tokens-per-sample", 32, "--max-positions", 32, "--batch-size", 4, "--update-freq", 1,
    "--num-workers", 0, "--warmup-updates", 1, "--max-update", 1,
]  # fmt: skip


@cache
def merged(folder, name):
    """All settings of a configuration: base.yaml, its own file, and the architecture's defaults."""
    experiment = read_experiment(ROOT / "configs" / folder / f"{name}.yaml")
    settings = {
        (group, key): value for group, values in experiment.settings.items() for key, value in values.items()
    }
    fields = MODEL_DATACLASS_REGISTRY[settings["model", "_name"]].__dataclass_fields__
    defaults = {("model", key): field.default for key, field in fields.items() if key != "_name"}
    return defaults | settings


def differing(one, other):
    return {
        key for group, key in one.keys() | other.keys() if one.get((group, key)) != other.get((group, key))
    }


@pytest.mark.parametrize("folder", ABLATIONS)
def test_configurations_differ_in_what_is_studied(folder):
    ablation = ABLATIONS[folder]
    names = {path.stem for path in (ROOT / "configs" / folder).glob("*.yaml")}
    assert names == set(ablation.configurations())
    for prefix in ablation.columns:
        first, *others = (merged(folder, prefix + row) for row in ablation.rows)
        for other in others:
            assert differing(first, other) and differing(first, other) <= STUDIED[folder]


@pytest.mark.parametrize("folder", [name for name in ABLATIONS if ABLATIONS[name].columns is T1_AND_T2])
def test_t1_and_t2_differ_in_the_architecture_only(folder):
    for row in ABLATIONS[folder].rows:
        t1, t2 = (merged(folder, prefix + row) for prefix in T1_AND_T2)
        assert (t1["model", "_name"], t2["model", "_name"]) == (
            "roberta_transnormer_t1",
            "roberta_transnormer_t2",
        )
        assert differing(t1, t2) == {"_name", "diag_activation", "norm_feature_map"}


@pytest.mark.parametrize("folder", ABLATIONS)
def test_configurations_are_the_rows_of_the_table(folder):
    for row in ABLATIONS[folder].rows:
        for prefix in ABLATIONS[folder].columns:
            settings = merged(folder, prefix + row)
            if folder in PLANS:
                plan = parse_layer_plan(settings["model", "encoder_attention"], 12, "", causal=False)
                assert plan == PLANS[folder][row]
            elif folder == "ablation_10_ffn":
                assert settings["model", "encoder_ffn"] == row
                assert settings["model", "encoder_ffn_activation"] == ("relu" if row == "ffn" else None)
            else:
                assert f"block{settings['model', 'diag_block_size']}" == row


@pytest.mark.parametrize("folder", ABLATIONS)
def test_pretraining_is_that_of_roberta(folder):
    """All settings but the model's, and its width and dropout, come from one file."""
    base = OmegaConf.to_container(OmegaConf.load(ROOT / "configs" / "roberta" / "base.yaml"))
    for name in ABLATIONS[folder].configurations():
        settings = read_experiment(ROOT / "configs" / folder / f"{name}.yaml").settings
        assert {key: settings[key] for key in base.keys() - {"model"}} == {
            key: base[key] for key in base.keys() - {"model"}
        }
        assert base["model"].items() <= settings["model"].items()


@pytest.mark.parametrize("folder", [name for name in ABLATIONS if ABLATIONS[name].columns is T1_AND_T2])
def test_transnormer_has_no_attention_dropout(folder):
    for name in ABLATIONS[folder].configurations():
        assert merged(folder, name)["model", "attention_dropout"] == 0.0


def test_table_says_how_rows_are_read():
    text = run_ablations.table(ABLATIONS["ablation_12_combination"], {})
    assert "Parallel: every layer has both" in text.splitlines()[-1]


@pytest.mark.slow
def test_runs_skips_and_goes_on_after_a_failure(refused, encoder_corpus, tmp_path, monkeypatch, capsys):
    """Of one of three an older run with other settings is in the way."""
    out = tmp_path / "ablation_01_scaling"
    blocked = out / "elu" / "ablation.json"
    blocked.parent.mkdir(parents=True)
    blocked.write_text(json.dumps({"fingerprint": "another"}))
    words = ["ablation_01_scaling", "--data", encoder_corpus, "--out", tmp_path, *TINY]
    sentence = refused(run_ablations, *words)
    assert "1 configurations failed, the first: ablation_01_scaling/elu:" in sentence
    assert "ablation.json was made with other settings" in sentence
    records = {
        name: json.loads((out / name / "ablation.json").read_text()) for name in ("elu_unscaled", "norm")
    }
    assert [record["updates"] for record in records.values()] == [1, 1]
    assert (
        records["norm"]["corpus"] == json.loads((encoder_corpus / "preparation.json").read_text())["corpus"]
    )
    figures = {name: f"{record['valid_perplexity']:.2f}" for name, record in records.items()}
    paper = read_table("transnormer_01_scaling_ablation")
    header, _, *rows = (line.strip("| ").split(" | ") for line in (out / "table.md").read_text().splitlines())
    assert [cell.strip() for cell in header] == ["method", "ppl_val, paper", "ppl_val, here"]
    assert [[cell.strip() for cell in row] for row in rows[:3]] == [
        [row["method"], row["ppl_val"], figures.get(name, "–")]
        for row, name in zip(paper, ("elu", "elu_unscaled", "norm"), strict=True)
    ]
    assert "after 1 updates" in rows[-1][0] and "--max-update 1" in rows[-1][0]

    attempted = []

    def train(command, arguments, log, *unused):
        attempted.append(log)
        raise UserError("the disk is full")

    monkeypatch.setattr(train_lm, "run_fairseq", train)
    blocked.unlink()
    capsys.readouterr()
    assert "ablation_01_scaling/elu: the disk is full" in refused(run_ablations, *words)
    assert attempted == [out / "elu" / "train.log"]
    said = capsys.readouterr().out
    assert said.count("done before") == 2 and "ablation_01_scaling/norm: done before" in said


def test_an_ablation_without_results_writes_no_table(refused, encoder_corpus, tmp_path, monkeypatch):
    def fail(*unused, **unused_too):
        raise UserError("the disk is full")

    monkeypatch.setattr(train_lm, "run_fairseq", fail)
    words = ["ablation_09_order", "--data", encoder_corpus, "--out", tmp_path, *TINY]
    assert "4 configurations failed, the first: ablation_09_order/" in refused(run_ablations, *words)
    assert not [*tmp_path.rglob("table.md")]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("", "the following arguments are required: ABLATION"),
        ("ablation_08", "there is no ablation ablation_08; there are ablation_01_scaling"),
        ("ablation_09_order --gpus 0 --data nowhere", "no data folder nowhere"),
    ],
)
def test_mistakes(words, message, refused, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert message in refused(run_ablations, *words.split(), *(["--out", tmp_path] if words else []))
    assert not capsys.readouterr().out  # missing data are not said again for every configuration
