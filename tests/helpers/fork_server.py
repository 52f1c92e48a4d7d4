"""The process that commands are forked from; a parallel run has one for all its processes."""

import os
from multiprocessing import forkserver, resource_tracker

PRELOADED = ["lab.run.process", "fairseq_cli.train", "hydra", "sentencepiece", "user_dir"]
PRELOADED += ["torch._dynamo"]  # the first optimizer of a process imports it, in 1.7 s
PRELOADED += ["lab.study.worker", "tests.helpers.forked", "tests.helpers.warmed"]
VARIABLES = {"_forkserver_address": "FORK_SERVER_OF_TESTS", "_forkserver_authkey": "FORK_SERVER_KEY"}
"""Attributes of multiprocessing's server (a key from Python 3.14 on), and where others find them."""

forkserver.set_forkserver_preload(PRELOADED)


def start() -> None:
    """Start it, for the processes that this one starts from now on; it ends with this one."""
    forkserver.ensure_running()
    for name, variable in VARIABLES.items():
        if value := getattr(forkserver._forkserver, name, None):
            os.environ[variable] = os.fsencode(value).hex()


def join() -> None:
    """Use the one of the process that has started this one, if it has one."""
    server, found = forkserver._forkserver, VARIABLES["_forkserver_address"] in os.environ
    if not found or server._forkserver_alive_fd is not None:
        return
    for name, variable in VARIABLES.items():
        if value := os.environ.get(variable):
            text = bytes.fromhex(value)
            setattr(server, name, text if name.endswith("key") else os.fsdecode(text))
    server._forkserver_alive_fd = os.open(os.devnull, os.O_RDONLY)  # each fork is sent one
    server.ensure_running = resource_tracker.ensure_running
