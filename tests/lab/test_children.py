"""A child ends with the process that started it, and a pool when it is asked to stop."""

import os
import select
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

from lab import children

CHILD = """
    import os, signal
    from lab.children import end_with_parent
    end_with_parent()
    os.write(1, f"{os.getpid()}\\n".encode())
    signal.pause()
    """
PARENT = """
    import sys
    from lab import children
    with children.started("waits_for_ever", [], sys.stdout.buffer, {}) as process:
        process.wait()
    """


def test_killed_parent_takes_its_child_with_it(root, tmp_path):
    (tmp_path / "waits_for_ever.py").write_text(textwrap.dedent(CHILD))
    parent = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(PARENT)],
        stdout=subprocess.PIPE,
        cwd=root,
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
    )
    child = os.pidfd_open(int(parent.stdout.readline()))
    parent.kill()
    assert select.select([child], [], [], 60)[0], "it outlives the process that started it"


def test_child_of_a_parent_that_has_died_before(root):
    child = subprocess.run(
        [sys.executable, "-c", "from lab import children; children.end_with_parent(); print('ran')"],
        cwd=root,
        env={**os.environ, children.PARENT: "1"},
        capture_output=True,
    )
    assert child.returncode == -9 and child.stdout == b""


@pytest.mark.parametrize(
    "variables", [{children.PARENT: "foo"}, {children.PARENT: ""}, {"PARENT_PROCESS": "1"}]
)
def test_a_variable_that_names_no_parent_of_ours_is_ignored(root, variables):
    child = subprocess.run(
        [sys.executable, "-c", "from lab import children; children.end_with_parent(); print('ran')"],
        cwd=root,
        env={**os.environ, **variables},
        capture_output=True,
    )
    assert (child.returncode, child.stdout, child.stderr) == (0, b"ran\n", b"")


@pytest.mark.parametrize("in_log", [True, False])
def test_an_unexpected_failure_ends_with_its_traceback_and_a_sentence(in_log, tmp_path, capsys):
    log = tmp_path / "train.log"
    log.write_text("before\n")
    with pytest.raises(SystemExit) as end:
        try:
            raise RuntimeError("quite ü")
        except RuntimeError as error:
            children.end_with(error, 2, log if in_log else None)
    said = capsys.readouterr().out
    assert end.value.code == 2 and said.endswith("error: unexpected RuntimeError: quite ü\n")
    kept = log.read_text(encoding="utf-8")
    assert kept.startswith("before\n")
    assert ("Traceback" in said, "Traceback" in kept) == (not in_log, in_log)


def mark(folder: Path, number: int) -> None:
    """A job that leaves a file and takes a moment."""
    (folder / str(number)).touch()
    time.sleep(0.01)


@pytest.mark.parametrize("asked", [KeyboardInterrupt, SystemExit, ValueError])
def test_a_pool_leaves_the_jobs_out_that_have_not_begun(asked, tmp_path):
    with pytest.raises(asked), children.worker_pool(2) as pool:
        first, *_ = [pool.submit(mark, tmp_path, number) for number in range(1000)]
        first.result()
        raise asked
    assert 0 < len([*tmp_path.iterdir()]) < 500
