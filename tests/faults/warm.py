"""Commands as forks of a process that has imported them: each costs a second instead of ten.

Started with fault.c preloaded and a socket to the tests as its standard input. What a command starts as
`lab.run.process` or `lab.study.worker` is forked as well; everything else is as
`python -m lab` does it.
"""

import importlib
import json
import multiprocessing
import os
import runpy
import socket
import subprocess
import sys
from typing import Any

from tests.helpers import fork_server, forked, registry

MOST = 1 << 16  # bytes of a message


def serve(tests: socket.socket) -> None:
    """Start the processes that the tests request, and report their ends, until the tests have gone."""
    while True:
        message, files, *_ = socket.recv_fds(tests, MOST, 2)
        if not message:
            return
        request = json.loads(message)
        if "await" in request:
            pid, status = os.waitpid(request["await"], 0 if request["block"] else os.WNOHANG)
            answer = os.waitstatus_to_exitcode(status) if pid else None
        else:
            answer = os.fork()
            group = request["group"] or answer
            os.setpgid(answer, group)  # here and in the fork: whoever comes first
            if not answer:
                tests.close()
                return begin(request["words"], files, request["fault"])
            for file in files:
                os.close(file)
        tests.send(json.dumps(answer).encode())


def begin(words: list[str], files: list[int], fault: dict[str, str]) -> None:
    """In the fork: the command, with its output in `files`."""
    with open(os.devnull) as nothing:
        os.dup2(nothing.fileno(), 0)
    for stream, file in enumerate(files, start=1):
        os.dup2(file, stream)
        os.close(file)
    os.environ.update(fault)
    for patch in forked.patches(multiprocessing.get_context("fork")):
        setattr(*patch)
    sys.argv = ["lab", *words]
    runpy.run_module("lab", run_name="__main__", alter_sys=True)


class Started:
    """A command of the warm process, seen from the tests, as a `subprocess.Popen` is."""

    def __init__(self, warm: "Warm", words: list[str], fault: dict[str, str], group: int | None) -> None:
        pipes = [os.pipe() for _ in range(2)]
        self.stdout, self.stderr = (os.fdopen(read, encoding="utf-8") for read, _ in pipes)
        writes = [write for _, write in pipes]
        self.warm, self.returncode = warm, None
        self.pid = warm.ask({"words": words, "fault": fault, "group": group}, writes)
        for write in writes:
            os.close(write)

    def poll(self, block: bool = False) -> int | None:
        if self.returncode is None:
            self.returncode = self.warm.ask({"await": self.pid, "block": block})
        return self.returncode

    def communicate(self) -> tuple[str, str]:
        output = self.stdout.read(), self.stderr.read()
        self.poll(block=True)
        return output


class Warm:
    """The warm process; `library` is preloaded."""

    def __init__(self, library: str, folder: str) -> None:
        self.socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        environment = {**os.environ, "LD_PRELOAD": library, "PYTHONPATH": folder}
        command = [sys.executable, "-m", "tests.faults.warm"]
        subprocess.Popen(command, stdin=theirs, cwd=folder, env=environment, start_new_session=True)
        theirs.close()

    def ask(self, request: dict[str, Any], files: list[int] = ()) -> Any:
        socket.send_fds(self.socket, [json.dumps(request).encode()], files)
        return json.loads(self.socket.recv(MOST))


if __name__ == "__main__":
    from lab.console import warn_only

    warn_only()
    for name in ("lab.run.train", "lab.publish.plots", *fork_server.PRELOADED):
        importlib.import_module(name)
    registry.share()
    serve(socket.socket(fileno=os.dup(0)))
