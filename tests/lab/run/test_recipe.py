"""YAMLs of configs/: composition, translation to the command line, the effective batch."""

import sys
from argparse import Namespace
from pathlib import Path

import pytest
import torch
from fairseq import options
from omegaconf import OmegaConf

from lab.errors import UserError
from lab.files import ROOT
from lab.run.launch import Machines
from lab.run.plan import Request, planned, read_experiment
from lab.run.recipe import (
    compose_experiment,
    fairseq_arguments,
    fast_flags,
    is_given,
    option,
    replaced_precision,
    shared_batch,
    shortened,
    shorter_warmup,
)
from tests.helpers import forked
from tests.helpers.cases import firstly

CONFIGS = sorted(
    p for p in ROOT.glob("configs/*/*.yaml") if not p.stem.startswith("base") and p.parent.name != "studies"
)


def parsed(flags: list[str], data: Path) -> Namespace:
    """The configuration that fairseq reads from a command line of `fairseq-train`."""
    parser = options.get_training_parser()
    words = [] if "copy" in flags else [str(data)]  # that task draws its data
    return options.parse_args_and_arch(parser, [*words, "--user-dir", f"{ROOT}/user_dir", *flags])


@pytest.mark.parametrize("path", CONFIGS, ids=lambda p: f"{p.parent.name}/{p.stem}")
def test_flags_say_what_the_yaml_says(path, tmp_path):
    experiment = read_experiment(path)
    # Fine-tuning has its model from the checkpoint, its updates from the data.
    rest = [] if "model" in experiment.settings else ["--arch", "roberta_softmax", "--total-num-update", "9"]
    found = vars(parsed([*experiment.flags(), *rest], tmp_path))
    depends_on_machines = {"distributed_world_size", "update_freq", "data"}
    for group, settings in experiment.settings.items():
        for key in settings.keys() - depends_on_machines:
            option = key if key != "_name" else "arch" if group == "model" else group
            # As text: fairseq has no type for an option whose default refers to another, total_num_update.
            assert str(found[option]) == str(settings[key]), (group, key)


def test_base_is_shared_and_references_are_resolved():
    experiment = read_experiment(ROOT / "configs/wikitext103/transformer_lm.yaml")
    assert experiment.get("model", "decoder_input_dim") == experiment.get("model", "decoder_embed_dim")
    assert experiment.name == "wikitext103/transformer_lm"
    assert experiment.data_folder() == ROOT / "data/wikitext-103"


def test_total_batch_of_the_paper():
    for path in (ROOT / "configs/wikitext103").glob("t*.yaml"):
        experiment = read_experiment(path)
        for gpus in (1, 2, 4, 8, 16):
            steps, size = shared_batch(experiment, gpus)
            assert size is None
            assert [gpus * n * experiment.get("dataset", "batch_size") for n in steps] == [128]


def test_lln_has_fairseqs_recipe():
    """The recipe of its RoBERTa-base, not TransNormer's; 2,048 sequences per batch."""
    for name in ("lln", "lln_diag", "softmax_lln"):
        lln = read_experiment(ROOT / f"configs/roberta/wikitext103_{name}.yaml")
        assert [8 * n * lln.get("dataset", "batch_size") for n in shared_batch(lln, 8)[0]] == [2048]
        assert lln.get("optimization", "max_update") == lln.get("lr_scheduler", "total_num_update") == 125000
        assert lln.get("lr_scheduler", "warmup_updates") == 10000
        assert lln.get("common", "fp16") and lln.get("model", "attention_dropout") == 0.1


@pytest.mark.parametrize(
    ("gpus", "extra", "dropped"),
    [
        (8, [], []),
        (8, ["--bf16"], ["fp16"]),
        (0, ["--memory-efficient-bf16"], ["fp16"]),
        (0, [], ["fp16"]),
        (0, ["--fp16-no-flatten-grads"], []),
    ],
)
def test_precision_of_the_command_line(gpus, extra, dropped):
    lln = read_experiment(ROOT / "configs/roberta/wikitext103_lln_diag.yaml")
    assert replaced_precision(lln, gpus, extra) == dropped
    assert ("--fp16" in lln.flags(dropped)) == (not dropped)


@pytest.mark.parametrize(
    ("name", "gpus", "extra", "expected"),
    [
        ("wikitext103/transnormer_t1", 8, [], "--optimizer adamw_fused --bf16 --compile"),
        ("wikitext103/transnormer_t1", 0, [], "--optimizer adamw_fused"),
        ("wikitext103/transnormer_t1", 1, ["--fp16", "--optimizer", "sgd"], "--compile"),
        ("wikitext103/transformer_lm", 1, ["--criterion", "cross_entropy"], "--optimizer adamw_fused --bf16"),
        ("roberta/wikitext103_lln", 8, [], "--optimizer adamw_fused --bf16 --compile"),
    ],
)
def test_flags_of_fast(name, gpus, extra, expected):
    """On a GPU and on the CPU; the user's own choices stay, and --bf16 replaces a YAML's fp16."""
    experiment = read_experiment(ROOT / "configs" / f"{name}.yaml")
    flags = fast_flags(experiment, gpus, extra)
    assert flags == expected.split()
    if experiment.get("common", "fp16"):
        assert replaced_precision(experiment, gpus, flags) == ["fp16"]


@pytest.mark.parametrize(("extra", "notes"), [([], 1), (["--bf16"], 0)])
def test_fp16_of_a_yaml_on_the_cpu(extra, notes, tmp_path, capsys):
    config = ROOT / "configs/roberta/wikitext103_lln_diag.yaml"
    planned(Request(config, tmp_path, Machines(0), tmp_path / "run", extra, here=False))
    said = capsys.readouterr()
    assert "--fp16" not in said.out and all(flag in said.out for flag in extra)
    assert said.err.count("note: float32 in place of the fp16") == notes


def test_attention_dropout_of_table_13():
    """In TransNormer's Table 5, vanilla attention alone has it."""
    others = ("linear", "performer", "flash", "flash_quad", "transformer_ls")
    for name in ("softmax", "transnormer_t1", "transnormer_t2", *others):
        experiment = read_experiment(ROOT / f"configs/roberta/wikitext103_{name}.yaml")
        assert experiment.get("model", "attention_dropout") == (0.1 if name == "softmax" else 0.0)


def test_batch_that_cannot_be_shared(config):
    with pytest.raises(UserError, match="3 processes cannot share .* take 1, 2, 4"):
        shared_batch(read_experiment(config), 3)


@pytest.mark.parametrize("preset", ["lra_skyformer", "lra_state_space"])
def test_samples_of_a_batch_are_shared(preset):
    """Where there is but one batch an update; not where the size was chosen on the command line."""
    for path in sorted((ROOT / "configs" / preset).glob("[!b]*.yaml")):
        experiment = read_experiment(path)
        for gpus in (1, 2, 8, 16):
            steps, size = shared_batch(experiment, gpus)
            assert gpus * steps[0] * (size or experiment.get("dataset", "batch_size")) == experiment.get(
                "dataset", "batch_size"
            )
        with pytest.raises(UserError, match="3 processes cannot share .* take 1, 2, 4, 8, 16"):
            shared_batch(experiment, 3)
        with pytest.raises(UserError, match="take 1, or"):
            shared_batch(experiment, 2, divisible=False)


@pytest.mark.parametrize(
    ("steps", "world", "processes", "expected"),
    [  # of batches of 4 samples
        ([3], 1, 1, ([3], None)),
        ([3], 1, 2, ([3], 2)),
        ([2], 1, 2, ([1], None)),
        ([1], 2, 4, ([1], 2)),
        ([1, 2], 1, 4, ([1, 2], 1)),
        ([3], 2, 3, ([2], None)),
    ],
)
def test_the_batch_stays_the_same(steps, world, processes, expected, tmp_path):
    path = tmp_path / "one.yaml"
    path.write_text(
        f"optimization: {{update_freq: {steps}}}\ndataset: {{batch_size: 4}}\n"
        f"distributed_training: {{distributed_world_size: {world}}}\n"
    )
    assert shared_batch(read_experiment(path), processes) == expected


@pytest.mark.parametrize("words", [["--batch-size", "16"], ["--max-sentences", "16"], ["--max-sentences=16"]])
def test_a_flag_counts_under_each_of_its_names(words):
    """Two processes would train on 32 samples an update."""
    assert is_given(words, "--batch-size") and option(["--batch-size", "32", *words], "--batch-size") == "16"
    experiment = read_experiment(ROOT / "configs" / "copy" / "small.yaml")
    with pytest.raises(UserError, match="2 processes cannot share the batch"):
        fairseq_arguments(experiment, None, Machines(2), Path("run"), words)


@pytest.mark.parametrize(
    ("words", "value"),
    [
        (["--lr", "1", "--lr", "2"], "2"),
        (["--lr=1", "--lr=2"], "2"),
        (["--lr=1", "--lr", "2"], "2"),
        (["--lr", "1", "--lr=2"], "2"),
        (["--lr=a=b"], "a=b"),
        (["--lr-scheduler", "fixed"], None),
        (["--lr"], None),
    ],
)
def test_the_last_value_of_a_flag_counts(words, value):
    assert option(words, "--lr") == value


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("optimization: {max_updates: 3}", "max_updates is not a setting.*did you mean max_update"),
        ("optimisation: {max_update: 3}", "not a group of settings; did you mean optimization"),
        ("model: {_name: transnormer_t3}", "no model is called .*did you mean transnormer_t"),
        ("task: {_name: language_modelling}", "no task is called .*did you mean language_model"),
        ("optimizer: {lr: [1]}", "optimizer needs a _name"),
        ("model: {_name: transnormer_t1, diag_blocksize: 4}", "did you mean diag_block_size"),
        ("task: [", "cannot be read"),
        ("defaults: [basis]", "its defaults name the base .*basis.yaml, which is missing"),
        ("model: {_name: '${nothing}'}", "cannot be read"),
        ("optimization: {update_freq: 2}", r"update_freq is 2; write a list of .* such as \[1\]"),
        ("optimization: {update_freq: []}", r"update_freq is \[\]; write a list"),
        ("optimization: {update_freq: [two]}", r"update_freq is \['two'\]; write a list"),
        ("dataset: {batch_size: many}", "dataset.batch_size is 'many'; write a whole number"),
        ("distributed_training: {distributed_world_size: }", "world_size is None; write a whole number"),
        ("lr_scheduler: {_name: fixed, warmup_updates: soon}", "warmup_updates is 'soon'; write a whole"),
    ],
)
def test_mistakes_in_a_yaml(text, message, tmp_path):
    path = tmp_path / "mistake.yaml"
    path.write_text(text)
    with pytest.raises(UserError, match=message) as error:
        read_experiment(path)
    assert "\n" not in str(error.value)


def test_an_empty_setting_leaves_the_default_of_fairseq(tmp_path):
    path = tmp_path / "empty.yaml"
    path.write_text("lr_scheduler: {_name: fixed, warmup_updates: }\ndataset: {batch_size: }\n")
    flags = fairseq_arguments(read_experiment(path), None, Machines(0), Path("run"), ["--max-update", "2"])
    assert "--warmup-updates" not in flags and "--batch-size" not in flags
    assert shorter_warmup(read_experiment(path), ["--max-update", "2"]) == []


def test_the_warm_up_of_a_short_run_is_shorter_than_the_run(tmp_path):
    path = tmp_path / "long.yaml"
    path.write_text("lr_scheduler: {_name: fixed, warmup_updates: 50}\n")
    found = {last: shorter_warmup(read_experiment(path), ["--max-update", last]) for last in ("1", "2", "40")}
    assert found == {last: ["--warmup-updates", own] for last, own in (("1", "1"), ("2", "1"), ("40", "4"))}


def test_setting_that_base_overrides(config, tmp_path):
    (tmp_path / "base.yaml").write_text((config.parent / "base.yaml").read_text())
    path = tmp_path / "twice.yaml"
    path.write_text(config.read_text() + "optimization: {max_update: 5}\n")
    with pytest.raises(UserError, match=r"optimization.max_update to 5 and its base.*to 4"):
        read_experiment(path)


def test_missing_yaml_names_the_nearest():
    with pytest.raises(UserError, match="configs/quickstart/transnormer_t1.yaml"):
        read_experiment(ROOT / "configs/quickstart/transnormer_t11.yaml")


@pytest.mark.slow
def test_hydra_composes_an_ablation_as_we_do(tmp_path):
    """`fairseq-hydra-train` itself, asked for the configuration only."""
    command = [sys.executable, "-m", "fairseq_cli.hydra_train", "--config-dir", ROOT / "configs"]
    command += ["--config-name", "ablations/paper_t1", "--cfg", "job"]
    done = forked.run(command, cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    composed = OmegaConf.to_container(OmegaConf.create(done.stdout))
    settings = read_experiment(ROOT / "configs/ablations/paper_t1.yaml").settings
    for group, values in settings.items():
        assert values.items() <= composed[group].items()


@pytest.mark.slow
@pytest.mark.parametrize("architecture", firstly(1, ["transnormer_t1", "transformer_lm"]))
def test_fairseq_hydra_train_reads_the_same_yaml(architecture, config, corpus, tmp_path):
    """The same losses, hence the same model, data and optimiser, as through the command line."""
    command = [sys.executable, "-m", "fairseq_cli.hydra_train", "--config-dir", config.parent]
    command += ["--config-name", architecture, f"common.user_dir={ROOT / 'user_dir'}"]
    command += ["common.cpu=true", "distributed_training.distributed_world_size=1"]
    quoted = str(corpus).replace("'", r"\'")
    command += [f"task.data='{quoted}'", f"checkpoint.save_dir={tmp_path / 'hydra'}"]
    done = forked.run(command, cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    flags = read_experiment(config.with_name(f"{architecture}.yaml")).flags()
    command = [sys.executable, "-m", "fairseq_cli.train", corpus, "--user-dir", ROOT / "user_dir"]
    command += [*flags, "--cpu", "--update-freq", "2", "--save-dir", tmp_path / "flags"]
    done = forked.run(command, cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    one, two = (torch.load(tmp_path / name / "checkpoint_last.pt")["model"] for name in ("hydra", "flags"))
    assert one.keys() == two.keys()
    assert all(torch.equal(one[name], two[name]) for name in one)


PERIODS = {"lr_period_updates": 485, "warmup_updates": 0}


@pytest.mark.parametrize(
    ("name", "changes", "updates", "expected"),
    [
        ("copy/small", {}, 300, ["--lr-deacy-period", "200"]),  # of 2,000 in 3,000 updates
        ("copy/small", {}, 4, ["--lr-deacy-period", "3"]),  # 2.67
        ("wikitext2/base", PERIODS, 300, ["--lr-period-updates", "100"]),
        ("lra_skyformer/text", {}, 500, ["--warmup-updates", "2"]),  # one_cycle takes no fewer
        ("lra_state_space/text", {}, 2, ["--warmup-updates", "1", "--total-num-update", "2"]),
    ],
)
def test_every_length_of_a_schedule_is_shortened(name, changes, updates, expected):
    experiment = compose_experiment(ROOT / f"configs/{name}.yaml").changed({"lr_scheduler": changes})
    assert shortened(experiment, (), updates) == ["--max-update", str(updates), *expected]
