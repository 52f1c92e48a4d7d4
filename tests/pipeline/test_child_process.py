"""A child, and what it has forked, end with the process that started it."""

import os
import select
import subprocess
import sys
import textwrap

from pipeline import child_process

CHILD = """
    import os, signal
    os.fork()
    os.write(1, f"{os.getpid()}\\n".encode())
    signal.pause()
    """
PARENT = """
    import os, subprocess, sys
    from pipeline import child_process
    command = [sys.executable, "-P", child_process.__file__, "waits_for_ever"]
    subprocess.run(command, env={**os.environ, **child_process.started_by_us()})
    """


def test_killed_parent_takes_its_child_and_grandchild_with_it(root, tmp_path):
    (tmp_path / "waits_for_ever.py").write_text(textwrap.dedent(CHILD))
    parent = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(PARENT)],
        stdout=subprocess.PIPE,
        cwd=root,
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
    )
    left = [os.pidfd_open(int(parent.stdout.readline())) for _ in range(2)]
    parent.kill()
    while left:
        ended = select.select(left, [], [], 60)[0]
        assert ended, "a process outlives the one that started it"
        left = [process for process in left if process not in ended]


def test_child_of_a_parent_that_has_died_before(root, tmp_path):
    (tmp_path / "runs.py").write_text("print('ran')")
    child = subprocess.run(
        [sys.executable, "-P", child_process.__file__, "runs"],
        env={**os.environ, "PYTHONPATH": str(tmp_path), child_process.PARENT: "1"},
        capture_output=True,
    )
    assert child.returncode == -9 and child.stdout == b""
