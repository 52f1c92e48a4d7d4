"""Averages of checkpoints: later records name the averaged checkpoints, and no run resumes from one."""

import re
import shutil
from pathlib import Path

import pytest
import torch

from lab.commands.average import average
from lab.files import read_json
from lab.run.checkpoint import newest_whole, read_checkpoint
from tests.helpers.evil import Evil

COMMAND = "scripts/lab.sh average"
TIED = ("decoder.embed_tokens.weight", "decoder.output_projection.weight")


@pytest.fixture
def run(trained, tmp_path) -> Path:
    """A run with checkpoints of updates 2 to 4 and of two epochs, whose weights are those numbers."""
    run = tmp_path / "run"
    run.mkdir()
    shutil.copy(trained / "dict.txt", run)
    state = torch.load(trained / "checkpoint_last.pt", weights_only=True)
    embeddings = state["model"][TIED[0]]
    for name, update in {"_1_2": 2, "_1_3": 3, "_2_4": 4, "1": 3, "2": 4}.items():
        model = {key: torch.full_like(x, update) for key, x in state["model"].items()}
        model |= dict.fromkeys(TIED, torch.full_like(embeddings, update))
        model["decoder.layers.0.self_attn.count"] = torch.tensor(update)
        model["decoder.layers.0.self_attn.eval_proj"] = torch.full((2,), float(update))
        history = [{**state["optimizer_history"][-1], "num_updates": update}]
        torch.save({**state, "model": model, "optimizer_history": history}, run / f"checkpoint{name}.pt")
    return run


@pytest.mark.parametrize(
    ("words", "updates"),
    [
        (["--num-update-checkpoints", 2], (3, 4)),
        (["--num-update-checkpoints", 2, "--checkpoint-upper-bound", 3], (2, 3)),
        (["--num-epoch-checkpoints", 2], (3, 4)),
    ],
)
def test_the_last_of_a_run(words, updates, call, run, capsys):
    call(COMMAND, "--inputs", run, *words, "--output", run / "checkpoint_average.pt")
    made = read_checkpoint(run / "checkpoint_average.pt")
    mean = sum(updates) / 2
    weights = {key: x for key, x in made.weights.items() if not key.endswith((".count", ".eval_proj"))}
    assert all((x == mean).all() and x.dtype == torch.float32 for x in weights.values())
    assert made.weights[TIED[0]].data_ptr() == made.weights[TIED[1]].data_ptr()
    drawn = [x for key, x in made.weights.items() if key not in weights]
    assert all((x == updates[1]).all() for x in drawn)
    assert made.updates == updates[1] and made.score is None and made.state["last_optimizer_state"] is None
    assert [name[-2] for name in made.averaged] == [str(update) for update in updates]
    assert made.averaged[0] in capsys.readouterr().out
    assert not newest_whole(run).averaged  # where the run resumes


def test_an_evaluation_names_them(call, trained, corpus, tmp_path):
    named = shutil.copy(trained / "checkpoint_last.pt", tmp_path / "other.pt")
    out = tmp_path / "average.pt"
    for _ in range(2):  # an average is replaced
        call(COMMAND, "--inputs", f"{trained / 'checkpoint_last.pt'}:{named}", "--output", out)
    assert (tmp_path / "dict.txt").read_bytes() == (trained / "dict.txt").read_bytes()
    call("scripts/eval_ppl.sh", out, corpus)
    assert read_json(tmp_path / "average.test.json")["averaged"] == read_checkpoint(out).averaged


def test_halves_are_averaged_in_double_precision(run):
    checkpoints = [read_checkpoint(run / f"checkpoint_1_{update}.pt") for update in (2, 3)]
    for one, value in zip(checkpoints, (2048.0, 2050.0), strict=True):
        one.state["model"].update({TIED[0]: torch.full((3,), value, dtype=torch.float16)})
    mean = average(checkpoints)["model"][TIED[0]]
    assert mean.dtype == torch.float16 and mean.tolist() == [2048.0] * 3  # 2049, rounded to even


REFUSED = [
    (["RUN"], "names the folder .*; add --num-update-checkpoints or --num-epoch-checkpoints and a number"),
    (["RUN/checkpoint1.pt"], "names one checkpoint, .*; an average needs two or more"),
    (["RUN", "--num-update-checkpoints", 9], "holds 3 checkpoint_EPOCH_UPDATE.pt, not 9; lower"),
    (["RUN/checkpoint1.pt", "--num-epoch-checkpoints", 2], "--num-epoch-checkpoints takes one folder"),
    (["RUN", "--checkpoint-upper-bound", 2], "--checkpoint-upper-bound goes with --num-update-checkpoints"),
    (["RUN/checkpoint1.pt", "RUN/none.pt"], "no checkpoint .*none.pt"),
    (["RUN/checkpoint1.pt", "RUN/evil.pt"], "nothing in it was run"),
    (["RUN/checkpoint1.pt", "RUN/wide.pt"], "cannot be averaged: decoder_layers is 2 in one and 3"),
    (["RUN/checkpoint1.pt", "RUN/short.pt"], "cannot be averaged: decoder.* has another shape in one"),
    (["RUN/checkpoint1.pt", "RUN/checkpoint2.pt", "--output", "RUN/checkpoint1.pt"], "read by this command"),
    (["RUN/checkpoint1.pt", "RUN/checkpoint2.pt", "--output", "RUN/wide.pt"], "not a result of this command"),
]


@pytest.fixture
def unfit(run) -> Path:
    """The run with checkpoints beside it that do not go together with its own."""
    state = torch.load(run / "checkpoint1.pt", weights_only=True)
    deeper = {**state["cfg"], "model": {**state["cfg"]["model"], "decoder_layers": 3}}
    torch.save({**state, "cfg": deeper}, run / "wide.pt")
    torch.save({**state, "model": dict(list(state["model"].items())[1:])}, run / "short.pt")
    torch.save({"model": Evil(run / "trace")}, run / "evil.pt")
    return run


@pytest.mark.parametrize(("words", "message"), REFUSED)
def test_mistakes(words, message, refused, unfit):
    before = {path: path.read_bytes() for path in unfit.iterdir()}
    words = [str(word).replace("RUN", str(unfit)) for word in words]
    if "--output" not in words:
        words += ["--output", unfit / "average.pt"]
    assert re.search(message, refused(COMMAND, "--inputs", *words))
    assert {path: path.read_bytes() for path in unfit.iterdir()} == before


def test_a_folder_with_another_dictionary_is_refused_with_the_option_of_this_command(refused, run, tmp_path):
    other = tmp_path / "other"
    other.mkdir()
    (other / "dict.txt").write_text("another 1\n")
    words = ["--inputs", run, "--num-update-checkpoints", 2, "--output", other / "average.pt"]
    assert f"another dictionary than {run}; choose another --output" in refused(COMMAND, *words)
