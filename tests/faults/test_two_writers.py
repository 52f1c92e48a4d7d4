"""A second run in the folder of one that is at work."""

import os
import re
import signal
import socket

import pytest

from tests.faults.runs import same_losses


@pytest.mark.slow
@pytest.mark.fault("second writer")
def test_second_writer_is_refused(training, unbroken, tmp_path):
    first = training.start(training.command(tmp_path))
    while "log, checkpoints" not in first.stdout.readline():
        assert first.poll() is None
    os.kill(first.pid, signal.SIGSTOP)  # or it might be done before the second one looks
    second = training.start(training.command(tmp_path))
    _, said = second.communicate()
    os.kill(first.pid, signal.SIGCONT)
    assert second.returncode == 1
    assert re.fullmatch(
        rf"error: .* is in use by process {first.pid} on {re.escape(socket.gethostname())}; .*\n", said
    )
    first.communicate()
    assert first.returncode == 0
    assert same_losses(tmp_path, unbroken)
