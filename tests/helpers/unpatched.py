"""Code run in forks of a process that has imported fairseq, but not the plugin, which would repair it."""

import atexit
import json
import os
import subprocess
import sys
import traceback
import types
import warnings
from importlib import import_module
from pathlib import Path
from typing import NoReturn

import torch

ROOT = Path(__file__).resolve().parents[2]


class Unpatched:
    """The process that forks, seen from the tests."""

    def __init__(self) -> None:
        command = [sys.executable, "-P", __file__]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def run(self, code: str, patched: bool = False) -> subprocess.CompletedProcess[str]:
        """Run `code`; `patched`, behind the patches of `user_dir.fairseq_patches`, applied twice."""
        self.process.stdin.write(json.dumps([code, patched]) + "\n")
        self.process.stdin.flush()
        status, output = json.loads(self.process.stdout.readline())
        return subprocess.CompletedProcess([code], status, output)

    def end(self) -> None:
        """End the process."""
        self.process.stdin.close()
        self.process.wait()


def serve() -> None:
    """Answer each request with the exit status and the output of a fork."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # fairseq's imports print
    for name in ("fairseq_cli.train", "fairseq.benchmark", "torch._dynamo"):
        import_module(name)
    warm()
    while line := sys.stdin.readline():
        code, patched = json.loads(line)
        read, write = os.pipe()
        pid = os.fork()
        if pid == 0:
            for descriptor in (1, 2):
                os.dup2(write, descriptor)
            apply(code, patched)
        os.close(write)
        with os.fdopen(read) as stream:
            output = stream.read()
        status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        print(json.dumps([status, output]), file=answers, flush=True)


def warm() -> None:
    """The configuration that each training composes, once; hydra's warnings count again afterwards."""
    sys.path.insert(0, str(ROOT))
    import_module("tests.helpers.registry").share()
    sys.path.pop(0)
    options, utils = import_module("fairseq.options"), import_module("fairseq.dataclass.utils")
    words = ["--task", "dummy_lm", "--arch", "transformer_lm", "--lr", "0.1", "--optimizer"]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for optimizer in ("sgd", "adam"):
            read = options.parse_args_and_arch(options.get_training_parser(), [*words, optimizer])
            utils.convert_namespace_to_omegaconf(read)


def apply(code: str, patched: bool) -> NoReturn:
    """Run in the fork, which ends like a program but skips the interpreter's teardown of several seconds."""
    sys.argv, status = ["test"], 0
    # Registered first, so called last: a process group that is still open then makes the process fail.
    atexit.register(lambda: torch.distributed.is_initialized() and os._exit(1))
    try:
        if patched:
            # Importing the package itself would register models as well, which takes a second.
            package = sys.modules["user_dir"] = types.ModuleType("user_dir")
            package.__path__ = [str(ROOT / "user_dir")]
            patches = import_module("user_dir.fairseq_patches")
            patches.apply(), patches.apply()
        exec(code, {"__name__": "__main__"})
    except BaseException:
        traceback.print_exc()
        status = 1
    atexit._run_exitfuncs()
    os._exit(status)


if __name__ == "__main__":
    serve()
