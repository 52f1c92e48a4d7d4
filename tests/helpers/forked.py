"""Commands as forks of a process that has imported fairseq and the plugin, which takes seconds each time.

`run` and `start` take command lines of `[sys.executable, "-m", MODULE, ...]`. What such a command starts in
its turn (`lab.run.process`, a benchmark's worker) is a fork, too; for commands that a test
calls in its own process, `patches` says how. Tests of signals, limits and imports use `subprocess`.
"""

import importlib
import multiprocessing
import os
import runpy
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from functools import partial
from multiprocessing.context import BaseContext
from pathlib import Path
from types import SimpleNamespace
from typing import IO, Any

import torch

from benchmarks import worker
from conventions import REQUESTS
from lab import children
from lab.children import PARENT
from tests.helpers import fork_server, registry

CONTEXT = multiprocessing.get_context("forkserver")
fork_server.join()


class Running:
    """A command that runs in a fork made by `context`; its output goes to files.

    With `own_group` it leads a process group, so that a signal can reach it and all that it starts.
    """

    def __init__(
        self,
        command: Sequence[object],
        cwd: Path | str | None = None,
        env: Mapping[str, str] = os.environ,
        context: BaseContext = CONTEXT,
        own_group: bool = False,
    ) -> None:
        python, option, module, *arguments = map(str, command)
        assert (python, option) == (sys.executable, "-m"), command
        self.command = list(command)
        self.folder = tempfile.TemporaryDirectory()
        self.logs = [Path(self.folder.name) / name for name in ("stdout", "stderr")]
        place = Path.cwd() if cwd is None else cwd
        target = _lead_group if own_group else _main
        words = (module, arguments, self.logs, place, dict(env))
        self.process = context.Process(target=target, args=words)
        self.process.start()

    def wait(self, check: bool = False, timeout: float | None = None) -> subprocess.CompletedProcess[str]:
        """Its end, as `subprocess.run` gives it with `capture_output`, `text` and `timeout`."""
        self.process.join(timeout)
        if self.process.exitcode is None:
            self.process.kill()
            self.process.join()
            self.folder.cleanup()
            raise subprocess.TimeoutExpired(self.command, timeout)
        texts = [log.read_text(encoding="utf-8") if log.exists() else "" for log in self.logs]
        self.folder.cleanup()
        done = subprocess.CompletedProcess(self.command, self.process.exitcode, *texts)
        if check and done.returncode:
            printed = (texts[0] + texts[1])[-3000:]
            raise AssertionError(f"{self.command} ended with {done.returncode}:\n{printed}")
        return done


def start(command: Sequence[object], **options: Any) -> Running:
    """Start a command line; `cwd` and `env` are those of `subprocess`, the rest of `Running`."""
    return Running(command, **options)


def run(
    command: Sequence[object], check: bool = False, timeout: float | None = None, **options: Any
) -> subprocess.CompletedProcess[str]:
    """Run a command line; `check` raises its output if it fails, `timeout` is as in `subprocess.run`."""
    return start(command, **options).wait(check, timeout)


class Popen:
    """The part of `subprocess.Popen` that `children.py` and its users need; `stdout` is a log."""

    def __init__(
        self,
        command: Sequence[str],
        stdout: IO[bytes],
        env: Mapping[str, str],
        context: BaseContext = CONTEXT,
        start_new_session: bool = False,
        **unused: Any,
    ) -> None:
        log = Path(stdout.name)
        if context is CONTEXT:  # it would end at once: the process that forks is not the one that started it
            env = {name: value for name, value in env.items() if name != PARENT}
        words = (command[2], list(command[3:]), [log, log], Path.cwd(), env)
        self.process = context.Process(target=_lead_group if start_new_session else _main, args=words)
        self.process.start()
        self.pid, self.terminate, self.kill = self.process.pid, self.process.terminate, self.process.kill
        self.returncode: int | None = None  # known once it was waited for, as with subprocess

    def wait(self, timeout: float | None = None) -> None:
        self.process.join(timeout)
        if self.poll() is None:
            raise subprocess.TimeoutExpired("a fork", timeout)

    def poll(self) -> int | None:
        self.returncode = self.process.exitcode
        return self.returncode

    def send_signal(self, number: int) -> None:
        os.kill(self.pid, number)


def measure(
    command: Sequence[str], env: Mapping[str, str], context: BaseContext, timeout: float, **unused: Any
) -> object:
    """For `subprocess.run` in `benchmarks.worker`."""
    return run(command, env=env, context=context, timeout=timeout)


def patches(context: BaseContext = CONTEXT) -> list[tuple[object, str, object]]:
    """Modules, their attributes, and values with which their processes are forks."""
    return [
        (children, "subprocess", subprocess_with(Popen=partial(Popen, context=context))),
        (worker, "subprocess", subprocess_with(run=partial(measure, context=context))),
    ]


def subprocess_with(**replaced: Any) -> SimpleNamespace:
    """`subprocess` with some of its names `replaced`."""
    return SimpleNamespace(**{**vars(subprocess), **replaced})


def _lead_group(*command: Any) -> None:
    """`_main` in its own process group."""
    os.setpgrp()
    _main(*command)


def _main(module: str, arguments: list[str], logs: list[Path], cwd: Path, env: dict[str, str]) -> None:
    """In the child: the same as `python -m MODULE ARGUMENTS`."""
    for descriptor, log in enumerate(logs, start=1):
        with log.open("ab") as file:
            os.dup2(file.fileno(), descriptor)
    for number in REQUESTS:  # as after an exec
        signal.signal(number, signal.SIG_DFL)
    os.environ.clear()
    os.environ.update(env)
    if threads := env.get("OMP_NUM_THREADS"):  # a process that has threads cannot be forked from
        torch.set_num_threads(int(threads))
    os.chdir(cwd)
    multiprocessing.set_start_method("fork", force=True)  # the usual one; data loaders go by it
    for patch in patches(multiprocessing.get_context("fork")):
        setattr(*patch)
    registry.share()
    importlib.import_module("user_dir.attention.own").load_own()
    sys.argv = [module, *arguments]
    sys.modules.pop(module, None)  # else runpy warns that it is imported already
    try:
        runpy.run_module(module, run_name="__main__", alter_sys=True)
    except Exception:
        sys.excepthook(*sys.exc_info())
        sys.exit(1)
