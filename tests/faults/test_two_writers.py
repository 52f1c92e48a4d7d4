"""A second run or study in a folder that is in use."""

import os
import re
import signal
import socket

import pytest

from tests.faults.runs import same_losses

pytestmark = [pytest.mark.slow, pytest.mark.fault("second writer")]
STUDY = "study copy --preset tiny --method elu --seeds 1 -- --train-samples 160 --max-update 6"


def refused(training, words: list[str], sign: str) -> str:
    """The output of a second command, started once the first has printed `sign`; the first then succeeds."""
    first = training.start(words)
    while sign not in first.stdout.readline():
        assert first.poll() is None
    os.kill(first.pid, signal.SIGSTOP)  # or it might be done before the second one looks
    second = training.start(words)
    _, said = second.communicate()
    os.kill(first.pid, signal.SIGCONT)
    first.communicate()
    assert (first.returncode, second.returncode) == (0, 1)
    found = re.fullmatch(
        rf"error: .* is in use by process {first.pid} on {re.escape(socket.gethostname())}; (.*)\n", said
    )
    assert found, said
    return found[1]


def test_second_writer_is_refused(training, unbroken, tmp_path):
    assert refused(training, training.command(tmp_path), "log, checkpoints").endswith("--save-dir")
    assert same_losses(tmp_path, unbroken)


def test_second_study_is_refused(training, tmp_path):
    command, _, flags = STUDY.partition(" -- ")
    words = [*command.split(), "--out", str(tmp_path), "--", *flags.split()]
    assert refused(training, words, "[1/1]").endswith("--out")
    assert len(list(tmp_path.rglob("seed1.json"))) == 1
