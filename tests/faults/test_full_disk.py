"""The disk is full while a checkpoint is written."""

import shutil
import subprocess

import pytest

from tests.faults.runs import ROUNDS, at, check_resumes, longer

pytestmark = [pytest.mark.slow, pytest.mark.fault("disk full")]


def test_no_room_for_a_checkpoint(training, unbroken, tmp_path, record_property):
    files = longer("checkpoint_1_5.pt", "checkpoint_last.pt", "checkpoint_2_15.pt", "checkpoint_best.pt")
    record_property("times", len(files))
    for name in files:
        broken = training.start(training.command(tmp_path), at("write", "full", path=f"{name}.tmp", nth=2))
        _, said = broken.communicate()
        assert broken.returncode == 1
        assert said.startswith(f"error: the disk is full while writing {tmp_path / name}; ")
        assert said.count("\n") == 1
        assert not list(tmp_path.glob("*.tmp"))
    check_resumes(training, tmp_path, unbroken)


@pytest.mark.skipif(ROUNDS == 1, reason="only with scripts/lab.sh check faults --rounds 2 or more")
def test_small_file_system(training, unbroken, tmp_path):
    """A tmpfs with room for the first checkpoints only, which is then made larger."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=400k", "tmpfs", disk]
    if not shutil.which("mount") or subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("no file system can be mounted here")
    try:
        folder = disk / "run"
        assert training.run(folder) == [1]
        assert not list(folder.glob("*.tmp"))
        subprocess.run(["mount", "-o", "remount,size=100m", disk], check=True)
        check_resumes(training, folder, unbroken)
    finally:
        subprocess.run(["umount", disk], check=True)
