"""Which processes train: started here (spawn), or one each by torchrun or by Slurm's srun.

Every process of `fairseq-train` is given its rank, its GPU and where all of them meet. fairseq's own guesses
fail in places: under torchrun without GPUs it divides by zero, under Slurm it wants as many tasks as visible
GPUs, and it draws ports at random.
"""

import os
import re
import socket
from argparse import Namespace
from collections.abc import Mapping
from dataclasses import dataclass

from lab.errors import UserError
from lab.provenance import usable_cores
from lab.run.folder import LOG

LAUNCHERS = {"spawn": "this command", "torchrun": "torchrun", "slurm": "srun"}
"""Names of the launchers for people, by their names on the command line."""
DEFAULT_PORT = 29500
SLURM_PORTS = range(15_000, 32_000)  # below those that Linux hands out
# Only srun sets these variables.
STEP = ("SLURM_STEP_ID", "SLURM_STEPID", "SLURM_STEP_NODELIST", "SLURM_STEP_NUM_TASKS")
# `node[003-007,9]-ib,other`: the first name's beginning, its first number if in brackets, its end.
FIRST_HOST = re.compile(r"([^,\[]*)(?:\[(\d+)[^\]]*\]([^,]*))?")


@dataclass(frozen=True)
class Machines:
    """Where to train: one process on each of `gpus` in each of `nodes` places.

    0 GPUs mean the CPU, in `cpu_processes` processes. A place is a machine, or a task of `launcher`. `master`
    is the address where all meet, `env://` where torchrun has said it. `first_device` is this place's first
    GPU among those that it sees.
    """

    gpus: int
    nodes: int = 1
    node_rank: int = 0
    master: str | None = None
    cpu_processes: int = 1
    launcher: str = "spawn"
    first_device: int = 0

    @property
    def per_node(self) -> int:
        """Processes in each place."""
        return self.gpus or self.cpu_processes

    @property
    def processes(self) -> int:
        """Processes that share a batch."""
        return self.per_node * self.nodes

    @property
    def quiet(self) -> bool:
        """Whether another node prints for this one, in the same terminal or log."""
        return self.launcher != "spawn" and self.node_rank > 0

    @property
    def log_name(self) -> str:
        """The log of this place, in the folder of the run."""
        kind = "node" if self.launcher == "spawn" else "rank"
        return f"train.{kind}{self.node_rank}.log" if self.node_rank else LOG

    def check_available(self) -> None:
        """UserError if this machine has too few GPUs."""
        available = gpu_count()
        if self.gpus > available:
            raise UserError(
                f"--gpus is {self.gpus}, but this machine has {available} usable GPUs; "
                "give fewer, or 0 for the CPU"
            )
        if self.first_device + self.gpus > available:
            raise UserError(
                f"process {self.first_device} of this machine sees only {available} GPUs; give each its own, "
                "or start no more processes than GPUs"
            )

    def check(self) -> None:
        """UserError if the combination is invalid on every machine."""
        if self.gpus < 0:
            raise UserError(f"--gpus is {self.gpus}; it must be 0 or more")
        if self.gpus and self.cpu_processes > 1:
            raise UserError("--cpu-processes is for training on the CPU; add --gpus 0, or leave it out")
        if self.nodes < 1 or not 0 <= self.node_rank < self.nodes:
            raise UserError(
                f"--node-rank is {self.node_rank}; with --nodes {self.nodes} it must be between 0 "
                f"and {self.nodes - 1}"
            )
        if self.nodes > 1 and not self.master:
            raise UserError("--nodes needs --master, the address of the machine with --node-rank 0")

    def flags(self) -> list[str]:
        """The flags for `fairseq-train`, as a person would give them on this place."""
        flags = ["--distributed-world-size", str(self.processes)]
        if self.gpus == 0:
            flags.insert(0, "--cpu")
        if self.nodes > 1:
            flags += ["--distributed-init-method", self.address()]
            flags += ["--distributed-rank", str(self.node_rank * self.per_node)]
        if self.processes > 1 and self.gpus == 0:
            flags += ["--distributed-no-spawn", "--distributed-backend", "gloo"]
            flags += ["--ddp-backend", "legacy_ddp"]
        elif self.launcher != "spawn":
            flags += ["--distributed-no-spawn"]
        return flags

    def ranks(self) -> list[list[str]]:
        """The last flags of each process of this place; empty if there is only one process in all."""
        if self.processes == 1:
            return [[]]
        address = self.address()
        return [
            ["--distributed-init-method", address, "--distributed-no-spawn"]
            + ["--distributed-rank", str(self.node_rank * self.per_node + place)]
            + ["--device-id", str(self.first_device + place)]
            for place in range(self.per_node)
        ]

    def address(self) -> str:
        """Where the processes meet, for `init_process_group`; a free port of this machine if it is alone."""
        if self.nodes == 1:
            return f"tcp://127.0.0.1:{free_port()}"
        master = str(self.master)
        if "://" in master:
            return master
        return f"tcp://{master}" if ":" in master else f"tcp://{master}:{DEFAULT_PORT}"

    def environment(self) -> dict[str, str]:
        """Environment variables that the processes need besides ours."""
        changed = {}
        if self.nodes > 1 and self.launcher == "spawn" and 0 < self.gpus < gpu_count():
            # fairseq itself would start a process for each GPU it sees.
            visible = os.environ.get("CUDA_VISIBLE_DEVICES", "")
            names = visible.split(",") if visible else [str(i) for i in range(self.gpus)]
            changed["CUDA_VISIBLE_DEVICES"] = ",".join(names[: self.gpus])
        if self.launcher != "torchrun" and "TORCHELASTIC_USE_AGENT_STORE" in os.environ:
            # Else torch waits for torchrun to serve our port.
            changed["TORCHELASTIC_USE_AGENT_STORE"] = "False"
        if self.cpu_processes > 1 and "OMP_NUM_THREADS" not in os.environ:
            changed["OMP_NUM_THREADS"] = str(max(1, usable_cores() // self.cpu_processes))
        return changed


def gpu_count() -> int:
    """GPUs that torch can use here; torch is imported only where this is asked."""
    import torch

    return torch.cuda.device_count()


def free_port() -> int:
    """A free port of this machine."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


def machines_of(options: Namespace, environ: Mapping[str, str] = os.environ) -> Machines:
    """Where to train, by the command line and the variables of the launcher in `environ`.

    Raises UserError if they contradict each other.
    """
    launcher = options.launcher or guessed(environ)
    if launcher == "spawn":
        gpus = gpu_count() if options.gpus is None else options.gpus
        return Machines(gpus, options.nodes, options.node_rank, options.master, options.cpu_processes)
    for name, default in (("nodes", 1), ("node_rank", 0), ("master", None), ("cpu_processes", 1)):
        if getattr(options, name) != default:
            raise UserError(f"--{name.replace('_', '-')} comes from {LAUNCHERS[launcher]}; leave it out")
    return (of_torchrun if launcher == "torchrun" else of_slurm)(options.gpus, environ)


def guessed(environ: Mapping[str, str]) -> str:
    """The launcher that has started this command, spawn if none has."""
    if "TORCHELASTIC_RUN_ID" in environ and "RANK" in environ:
        return "torchrun"
    if "SLURM_PROCID" not in environ or step_tasks(environ) < 2:
        return "spawn"
    if not any(name in environ for name in STEP):
        raise UserError(
            f"this job has {step_tasks(environ)} tasks, but srun has not started this command; write srun "
            "before it, or add --launcher spawn"
        )
    return "slurm"


def of_torchrun(gpus: int | None, environ: Mapping[str, str]) -> Machines:
    """This process' place among those that torchrun has started."""
    rank, size, local = (number(name, "torchrun", environ) for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK"))
    return one_process("torchrun", gpus, size, rank, "env://", local)


def of_slurm(gpus: int | None, environ: Mapping[str, str]) -> Machines:
    """This task's place in its job step: a process, or with one task on each machine one for each GPU."""
    rank, local = (number(name, "slurm", environ) for name in ("SLURM_PROCID", "SLURM_LOCALID"))
    tasks = step_tasks(environ)
    machines = int(environ.get("SLURM_STEP_NUM_NODES") or environ.get("SLURM_NNODES") or 1)
    hosts = environ.get("SLURM_STEP_NODELIST") or environ.get("SLURM_JOB_NODELIST") or "127.0.0.1"
    host = environ.get("MASTER_ADDR") or ("127.0.0.1" if machines == 1 else first_host(hosts))
    master = f"{host}:{environ.get('MASTER_PORT') or slurm_port(environ)}"
    if tasks > machines:
        return one_process("slurm", gpus, tasks, rank, master, local)
    gpus = gpu_count() if gpus is None else gpus
    return Machines(gpus, tasks, rank, master, launcher="slurm")


def one_process(
    launcher: str, gpus: int | None, size: int, rank: int, master: str, local_rank: int
) -> Machines:
    """A place with one process: on the only GPU that it sees, or on the GPU with its local number."""
    if gpus not in (None, 0, 1):
        raise UserError(
            f"--gpus is {gpus}, but {LAUNCHERS[launcher]} starts a process for each GPU; leave it out, or "
            "give 0 for the CPU"
        )
    visible = gpu_count()
    gpus = min(1, visible) if gpus is None else gpus
    device = local_rank if gpus and visible > 1 else 0
    return Machines(gpus, size, rank, master, launcher=launcher, first_device=device)


def number(name: str, launcher: str, environ: Mapping[str, str]) -> int:
    """A variable that the launcher sets; UserError if it has not started this process."""
    if not environ.get(name, "").isdecimal():
        raise UserError(
            f"--launcher {launcher} needs {name}, which {LAUNCHERS[launcher]} sets; start this command with "
            f"{LAUNCHERS[launcher]} (docs/cluster.md)"
        )
    return int(environ[name])


def step_tasks(environ: Mapping[str, str]) -> int:
    """The number of tasks of this job step."""
    return int(environ.get("SLURM_STEP_NUM_TASKS") or environ.get("SLURM_NTASKS") or 1)


def first_host(hosts: str) -> str:
    """The first name of Slurm's short way to write several: `node003` of `node[003-007,9]`."""
    begin, digits, end = FIRST_HOST.match(hosts).groups("")
    return f"{begin}{digits}{end}"


def slurm_port(environ: Mapping[str, str]) -> int:
    """A port that all tasks of a job step find, and that steps and jobs close in number do not share."""
    job, step = (int(environ.get(name, "0")) for name in ("SLURM_JOB_ID", "SLURM_STEP_ID"))
    return SLURM_PORTS[(job + 97 * step) % len(SLURM_PORTS)]
