"""No command writes over anything but its own results: refused before the work, every byte kept."""

import json
import os
from argparse import Namespace
from pathlib import Path

import pytest

from conventions import PREPARED
from lab import files
from lab.errors import UserError
from lab.files import (
    ROOT,
    begins,
    check_output,
    check_output_folder,
    json_with,
    marked,
    say_replaced,
    write_json,
)
from lab.measure.commands import result_files
from tests.helpers.commands import offered

CONTENT = b'{"not": "ours"}\n'
# A command, and the file that it must leave alone. It reads `in.pt` and `in.json`; `link.pt` and `hard.pt`
# are other names of `in.pt`; `notes` are somebody else's.
FILES = [
    ("scripts/eval_ppl.sh in.pt data --out in.pt", "in.pt", "--out"),
    ("scripts/eval_ppl.sh in.pt data --out link.pt", "link.pt", "--out"),
    ("scripts/eval_ppl.sh in.pt data --out hard.pt", "hard.pt", "--out"),
    ("scripts/eval_ppl.sh in.pt data --out notes.json", "notes.json", "--out"),
    ("scripts/eval_ppl.sh in.pt data --split valid", "in.valid.json", "--out"),
    ("scripts/eval_ppl.sh in.pt data --carry-state --out in.pt", "in.pt", "--out"),
    ("scripts/eval_ppl.sh in.pt data --carry-state --out new/notes.json", "new/notes.md", "--out"),
    ("scripts/eval_ppl.sh in.pt data --carry-state --out new.md", "", "--out"),
    ("scripts/lab.sh evaluate mlm in.pt data --out in.pt", "in.pt", "--out"),
    ("scripts/lab.sh evaluate lra in.pt data --out in.pt", "in.pt", "--out"),
    ("scripts/lab.sh evaluate lra in.pt data --out notes.json", "notes.json", "--out"),
    ("scripts/lab.sh evaluate images in.pt --out in.pt", "in.pt", "--out"),
    ("scripts/lab.sh evaluate images in.pt --out notes.json", "notes.json", "--out"),
    ("scripts/lab.sh sample in.pt --out in.pt", "in.pt", "--out"),
    ("scripts/lab.sh sample in.pt --out new/notes.png", "new/notes.npy", "--out"),
    ("scripts/lab.sh sample in.pt --out notes.png", "notes.png", "--out"),
    ("scripts/lab.sh predict in.pt --task RTE --input in.tsv --out in.tsv", "in.tsv", "--out"),
    ("scripts/lab.sh predict in.pt --task RTE --input in.tsv --out in.pt", "in.pt", "--out"),
    ("scripts/lab.sh report data --out notes.md", "notes.md", "--out"),
    ("scripts/lab.sh report data --out in.pt", "in.pt", "--out"),
    ("scripts/quickstart.sh --out figures", "figures/README.md", "--out"),
    ("scripts/lab.sh check faults --out notes.json", "notes.json", "--out"),
    ("scripts/lab.sh figures report --out figures", "figures/README.md", "--out"),
    ("scripts/lab.sh figures tradeoff --out figures", "figures/tradeoff/paper.json", "--out"),
    ("scripts/lab.sh figures tradeoff --redraw --out figures", "figures/tradeoff/paper.json", "--out"),
    ("benchmarks.attention_cost --quick --device cpu --out notes.json", "notes.json", "--out"),
    ("benchmarks.image_cost --quick --device cpu --out notes.json --restart", "notes.json", "--out"),
    ("benchmarks.lm_cost --quick --device cpu --out notes.json --restart", "notes.json", "--out"),
    ("benchmarks.lm_cost --quick --device cpu --out new/notes.json", "new/notes.md", "--out"),
    ("benchmarks.roberta_cost --quick --device cpu --out in.pt", "in.pt", "--out"),
    ("benchmarks.speech_cost --quick --device cpu --out in.pt --restart", "in.pt", "--out"),
    ("benchmarks.lra_speed --quick --device cpu --out notes.json", "notes.json", "--out"),
    ("benchmarks.loss_cost --device cpu --restart --out figures", "figures/loss_cost_cpu.json", "--out"),
    ("benchmarks.packed_cost data --device cpu --out figures", "figures/packed_cost_cpu.json", "--out"),
    ("benchmarks.cuda_resources --out figures", "figures/cuda_resources.json", "--out"),
    ("benchmarks.model_parts_cost --out figures", "figures/model_parts_cost.json", "--out"),
    ("benchmarks.operator_cost --device cpu --out figures", "figures/operator_cost.md", "--out"),
    # folders
    ("scripts/lab.sh export in.pt figures", "figures/README.md", "DIR"),
    ("scripts/lab.sh export in.pt notes.md", "notes.md", "DIR"),
    ("scripts/quickstart.sh --out notes.md", "notes.md", "--out"),
    ("scripts/lab.sh figures theory --out notes.md", "notes.md", "--out"),
    ("data-prep/bundled_corpus.sh --dest figures", "figures/README.md", "--dest"),
    ("data-prep/bundled_corpus.sh --dest notes.md", "notes.md", "--dest"),
    ("data-prep/bundled_corpus.sh --dest data/new", "data/preparation.json", "--dest"),
    ("data-prep/images.sh digits --dest data/new", "data/preparation.json", "--dest"),
    ("data-prep/wikitext.sh wikitext-2 --from figures --dest data/new", "data/preparation.json", "--dest"),
    ("data-prep/roberta.sh text --from figures --dest data/new", "data/preparation.json", "--dest"),
    ("data-prep/lra.sh listops --generate --dest data", "data/preparation.json", "--dest"),
    ("data-prep/glue.sh figures --tokenizer-from data --dest data", "data/preparation.json", "--dest"),
    ("scripts/quickstart.sh --out data/new", "data/preparation.json", "--out"),
    ("scripts/study.sh copy --method elu --out figures", "figures/README.md", "--out"),
    ("scripts/study.sh copy --method elu --out new", "new/small-curves.png", "--out"),
    ("scripts/study.sh copy --method elu --out data/new", "data/preparation.json", "--out"),
    ("scripts/lab.sh check gpu speed --dry-run --out data/new", "data/preparation.json", "--out"),
]
# Places in which nothing may be written, whoever asks.
PLACES = [
    ("scripts/lab.sh export in.pt {}", "DIR"),
    ("scripts/quickstart.sh --out {}", "--out"),
    ("scripts/lab.sh figures theory --out {}", "--out"),
    ("data-prep/bundled_corpus.sh --dest {}", "--dest"),
    ("data-prep/images.sh digits --dest {}", "--dest"),
    ("data-prep/lra.sh listops --generate --dest {}", "--dest"),
    ("scripts/lab.sh report data --out {}/report.html", "--out"),
    ("scripts/study.sh copy --method elu --out {}", "--out"),
    ("scripts/lab.sh check gpu speed --dry-run --out {}", "--out"),
]
NAMES = (
    "in.pt",
    "in.tsv",
    "in.valid.json",
    "notes.json",
    "notes.md",
    "notes.png",
    "new/notes.md",
    "new/notes.npy",
    "new/small-curves.png",
    "figures/README.md",
    "figures/loss_cost_cpu.json",
    "figures/model_parts_cost.json",
    "figures/packed_cost_cpu.json",
    "figures/cuda_resources.json",
    "figures/operator_cost.md",
    "figures/tradeoff/paper.json",
    "data/preparation.json",
)


@pytest.fixture
def place(tmp_path, monkeypatch) -> Path:
    """A folder with all the files that the tables name, none of them a result."""
    monkeypatch.chdir(tmp_path)
    for name in NAMES:
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(CONTENT)
    (tmp_path / "link.pt").symlink_to("in.pt")
    (tmp_path / "hard.pt").hardlink_to("in.pt")
    return tmp_path


def content_of(folder: Path) -> dict[str, bytes | None]:
    """Every file and folder, with its content."""
    return {
        str(path.relative_to(folder)): path.read_bytes() if path.is_file() else None
        for path in folder.rglob("*")
    }


@pytest.mark.parametrize(("command", "kept", "option"), offered(FILES), ids=str)
def test_what_is_not_the_commands_own_is_kept(command, kept, option, place, refused):
    before = content_of(place)
    sentence = refused(*command.split())
    assert option in sentence and Path(kept).parent.name in sentence, sentence
    assert content_of(place) == before
    assert (place / "link.pt").is_symlink()


@pytest.mark.parametrize(("command", "option"), offered(PLACES), ids=str)
@pytest.mark.parametrize("folder", ["/proc/nowhere", "docs"])
def test_places_that_take_nothing(command, option, folder, place, refused, monkeypatch):
    (place / "docs").mkdir()
    monkeypatch.setattr(files, "ROOT", place)
    before = content_of(place)
    sentence = refused(*command.format(folder).split())
    assert option in sentence and folder in sentence, sentence
    assert content_of(place) == before


def test_the_projects_own_folders_are_known():
    tracked = {path.name for path in ROOT.iterdir() if path.is_dir()}
    code = {name for name in tracked if any((ROOT / name).glob("*.py")) or any((ROOT / name).glob("*.sh"))}
    assert code <= set(files.PROJECT_FOLDERS)


@pytest.mark.parametrize(
    ("ending", "content"),
    [
        (".md", marked("a table").encode()),
        ("_picture.png", b"\x89PNG ... tEXtSource\0"),
        (".npy", b"numbers"),
    ],
)
def test_a_result_is_replaced_with_what_lies_beside_it(ending, content, tmp_path):
    out, ours = tmp_path / "result.json", json_with("a", kind="x")
    check_output(out, ours, beside=[ending])
    beside = tmp_path / f"result{ending}"
    beside.write_bytes(content)
    with pytest.raises(UserError, match=f"result{ending} is not a result"):
        check_output(out, ours, beside=[ending])
    out.write_text(json.dumps({"a": 1, "kind": "x", "more": 2}))
    check_output(out, ours, beside=[ending])
    if ending != ".npy":
        beside.write_text("mine")
        with pytest.raises(UserError, match=f"result{ending} is not a result"):
            check_output(out, ours, beside=[ending])
        beside.write_bytes(content)
    out.write_text(json.dumps({"a": 1, "kind": "y"}))
    with pytest.raises(UserError, match="result.json is not a result"):
        check_output(out, ours, beside=[ending])
    out.unlink()
    out.symlink_to(beside)
    with pytest.raises(UserError, match="result.json is not a result"):
        check_output(out, lambda path: True)


def test_an_earlier_result_that_is_read_is_no_place_for_a_new_one(tmp_path):
    out = tmp_path / "result.json"
    out.write_text('{"a": 1}')
    (tmp_path / "again.json").hardlink_to(out)
    check_output(out, json_with("a"))
    with pytest.raises(UserError, match="--report"):
        check_output(tmp_path / "again.json", json_with("a"), [out], option="--report")
    (tmp_path / "result.md").touch()
    with pytest.raises(UserError, match="result.md is read by this command"):
        check_output(out, json_with("a"), [tmp_path / "result.md"], beside=[".md"])


def test_a_result_of_another_checkpoint_or_split_is_kept(tmp_path):
    out, keys = tmp_path / "out.json", json_with("loss")
    options = Namespace(out=out, splits=["test"])
    write_json(out, {"loss": 1, "checkpoint": str(tmp_path / "a.pt"), "split": "test"})
    assert result_files("x.sh", options, tmp_path / "a.pt", keys) == {"test": out}
    with pytest.raises(UserError, match=r"another result, with checkpoint .*a.pt instead of .*b.pt; move it"):
        result_files("x.sh", options, tmp_path / "b.pt", keys)
    options.splits = ["valid"]
    with pytest.raises(UserError, match="another result, with split test instead of valid; move it away"):
        result_files("x.sh", options, tmp_path / "a.pt", keys)


@pytest.mark.parametrize("kind", ["device", "pipe", "dangling link"])
def test_what_is_no_file_is_not_replaced(kind, tmp_path):
    out = tmp_path / "out.json"
    if kind == "pipe":
        os.mkfifo(out)
    else:
        out.symlink_to("/dev/null" if kind == "device" else "nowhere")
    with pytest.raises(UserError, match="--out"):
        check_output(out, lambda path: True)


def test_signs(tmp_path):
    path = tmp_path / "page"
    path.write_bytes(b"12345 sign and \xff more")
    assert begins("sign", within=6)(path) and not begins("sign", within=5)(path)
    assert begins("12345")(path) and not begins("sign")(path)
    assert not json_with("sign")(path)


@pytest.mark.parametrize(
    ("folder", "said"),
    [("/", "is the root of the file system"), ("{}/${{oc.env:HOME}}", "which fairseq fills in")],
)
def test_folders_that_are_none_for_results(folder, said, tmp_path):
    with pytest.raises(UserError, match=said):
        check_output_folder(Path(folder.format(tmp_path)), "--save-dir")


def test_a_folder_of_data_takes_no_other(tmp_path):
    (tmp_path / PREPARED).write_text("{}")
    with pytest.raises(UserError, match="holds prepared data; choose another --out"):
        check_output(tmp_path / "a.json", lambda path: True)
    for folder in (tmp_path, tmp_path / "a", tmp_path / "a" / "b"):
        with pytest.raises(UserError, match="--dest"):
            check_output_folder(folder, "--dest")
    check_output_folder(tmp_path, "--dest", takes_prepared=True)


def test_a_link_that_leads_nowhere_takes_nothing(tmp_path):
    (tmp_path / "link").symlink_to(tmp_path / "disk")
    for folder in (tmp_path / "link", tmp_path / "link" / "run"):
        with pytest.raises(UserError, match="cannot be made or written in; choose another --out"):
            check_output_folder(folder, "--out")


def test_a_result_that_is_replaced_is_named(tmp_path, capsys):
    say_replaced(tmp_path / "new.tsv")
    (tmp_path / "old.tsv").write_text("x")
    say_replaced(tmp_path / "old.tsv")
    said = capsys.readouterr().out
    assert said == f"note: {tmp_path / 'old.tsv'}, perhaps of another checkpoint or input, will be replaced\n"
