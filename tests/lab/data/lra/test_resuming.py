"""Generated data: the same for any number of processes and any interruption; folders that are ready."""

import multiprocessing
import os
import shutil
import signal
from itertools import product

import numpy as np
import pytest

from lab.data.lra import listops, prepare
from lab.data.prepared import CONTENT, identify, same_data
from tests.helpers.prepared import contents

LISTOPS = ("listops", "--generate", "--examples", 200)
PATHFINDER = ("pathfinder", "--generate", "--examples", 40)
pytestmark = pytest.mark.usefixtures("small_blocks")


@pytest.mark.parametrize("arguments", [LISTOPS, PATHFINDER])
def test_number_of_processes_changes_nothing(prepare, tmp_path, arguments):
    folders = []
    for processes in (1, 2, 4):
        folders.append(tmp_path / str(processes))
        prepare(*arguments, "--dest", folders[-1], "--processes", processes)
    first, *others = map(contents, folders)
    assert first and all(other == first for other in others)


@pytest.mark.parametrize(
    "arguments, split", [(LISTOPS, "train.input0.bin"), (PATHFINDER, "train.pixels.npy")]
)
def test_seed_changes_the_data(prepare, tmp_path, arguments, split):
    for seed in (1, 2):
        prepare(*arguments, "--dest", tmp_path / str(seed), "--seed", seed)
    one, other = (contents(tmp_path / str(seed))[f"{arguments[0]}/{split}"] for seed in (1, 2))
    assert one != other


def die(*_):
    os.kill(os.getpid(), signal.SIGKILL)


DRAW = listops.draw_block


def draw_or_kill_the_parent(seed, number):
    if number == 2:
        os.kill(os.getppid(), signal.SIGKILL)
    return DRAW(seed, number)


def kill_in_third_block(monkeypatch):
    monkeypatch.setattr(listops, "draw_block", draw_or_kill_the_parent)


def kill_while_writing_rows(monkeypatch):
    encode = listops.ListOpsRows.encode

    def encode_and_die(self, expression):
        encode_and_die.rows += 1
        return die() if encode_and_die.rows == 150 else encode(self, expression)

    encode_and_die.rows = 0
    monkeypatch.setattr(listops.ListOpsRows, "encode", encode_and_die)


def kill_before_the_manifest(monkeypatch):
    monkeypatch.setattr(prepare, "write_description", die)


@pytest.mark.parametrize("kill", [kill_in_third_block, kill_while_writing_rows, kill_before_the_manifest])
def test_killed_run_resumes_to_the_same_bytes(prepare, tmp_path, capfd, kill):
    arguments = (*LISTOPS, "--processes", 1)
    prepare(*arguments, "--dest", tmp_path / "whole")

    def run_and_die():
        with pytest.MonkeyPatch.context() as patch:
            kill(patch)
            prepare(*arguments, "--dest", tmp_path / "killed")

    process = multiprocessing.get_context("fork").Process(target=run_and_die)
    process.start()
    process.join()
    assert process.exitcode == -signal.SIGKILL
    assert not (tmp_path / "killed" / "listops").exists()
    capfd.readouterr()
    prepare(*arguments, "--dest", tmp_path / "killed")
    assert "Resuming" in capfd.readouterr().out
    assert contents(tmp_path / "killed") == contents(tmp_path / "whole")


def test_folder_from_another_archive_is_refused(prepare, refused, shared_dir, tmp_path):
    archive = shared_dir / "data" / "imdb" / "aclImdb_sample.tar.gz"
    prepare("text", "--from", archive, "--dest", tmp_path)
    renamed = tmp_path / "same.tar.gz"
    shutil.copy(archive, renamed)
    prepare("text", "--from", renamed, "--dest", tmp_path)
    (tmp_path / "other.tar").write_bytes(b"another")
    words = ("data-prep/lra.sh", "text", "--partial", "--dest", tmp_path, "--from")
    assert "from other files than" in refused(*words, tmp_path / "other.tar")
    assert "there is no" in refused(*words, tmp_path / "missing")


@pytest.mark.parametrize("count", [4, 5])
def test_folder_from_many_other_reviews_is_refused(count, prepare, refused, tmp_path):
    def write_reviews(folder, said):
        for split, label in product(("train", "test"), ("neg", "pos")):
            (folder / split / label).mkdir(parents=True, exist_ok=True)
            for number in range(count):
                (folder / split / label / f"{number}_5.txt").write_text(f"{said} {number}")
        return folder

    one, other = write_reviews(tmp_path / "one", "good"), write_reviews(tmp_path / "other", "fine")
    words = ("text", "--valid-fraction", 0, "--dest", tmp_path / "lra", "--from")
    prepare(*words, one)
    prepare(*words, one)
    sentence = refused("data-prep/lra.sh", "--partial", *words, other)
    assert "from other files than" in sentence and "--dest" in sentence

    prepare(*words[:3], "--dest", tmp_path / "others", "--from", other)
    found, others = (identify(tmp_path / name / "text") for name in ("lra", "others"))
    assert not same_data(found, others)
    older = {key: value for key, value in found.items() if key != CONTENT}
    assert same_data(older, found) and same_data(others, older) and same_data(older, older)


def test_splits_have_the_published_proportions_and_the_order_of_drawing(prepare, opened, tmp_path, capsys):
    prepare(*LISTOPS, "--dest", tmp_path)
    assert "Generated 210 expressions in " in capsys.readouterr().out
    prepare(*PATHFINDER, "--dest", tmp_path)
    for name, sizes in (("listops", [192, 4, 4]), ("pathfinder", [32, 4, 4])):
        prepared = opened(tmp_path / name)
        assert [split["examples"] for split in prepared.manifest["splits"].values()] == sizes
        facts = [prepared.manifest[key] for key in ("origin", "seed", "sources")]
        assert facts == ["generated", 42, {}]
    prepared, block = opened(tmp_path / "listops"), listops.draw_block(42, 0)
    rows = prepared.rows("train")[: listops.BLOCK]
    assert np.concatenate(rows).tolist() == (block["symbols"].astype(int) + 4).tolist()
    assert prepared.labels("train")[: listops.BLOCK].tolist() == block["values"].tolist()


def test_all_takes_what_is_there_and_says_what_is_not(prepare, refused, shared_dir, tmp_path, capsys):
    words = ("all", "--from", shared_dir / "data" / "lra", "--dest", tmp_path)
    assert refused("data-prep/lra.sh", "--partial", *words).startswith("error: text not prepared")
    made = {path.name for path in tmp_path.iterdir()}
    assert made == {"listops", "retrieval", "image", "pathfinder", "path-x"}
    assert "text is left out" in capsys.readouterr().out
    shutil.copy(shared_dir / "data" / "imdb" / "aclImdb_sample.tar.gz", tmp_path / "own.tar.gz")
    prepare("text", "--from", tmp_path / "own.tar.gz", "--dest", tmp_path)
    prepare(*words)
    assert capsys.readouterr().out.count("is ready") == 1 + 6
