"""Training runs in separate processes, broken off at will."""

import os
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from lab.run.launch import free_port
from tests.faults.warm import Started, Warm
from tests.helpers.logs import updates

ROUNDS = int(os.environ.get("FAULT_ROUNDS", "1"))  # scripts/lab.sh check faults takes more
ROUNDING = 2e-3  # the log has three decimals


def at(call: str, action: str = "group", path: str = "", text: str = "", nth: int = 1) -> dict[str, str]:
    """The environment in which fault.c does `action` at the `nth` such system call."""
    fault = {"FAULT_CALL": call, "FAULT_ACTION": action, "FAULT_NTH": str(nth)}
    return fault | ({"FAULT_PATH": path} if path else {}) | ({"FAULT_TEXT": text} if text else {})


def later(fault: dict[str, str], microseconds: int) -> dict[str, str]:
    """Kill the group some time after the call at which `fault` would have."""
    return {**fault, "FAULT_ACTION": "later", "FAULT_DELAY": str(microseconds)}


def at_update(update: int, action: str = "group") -> dict[str, str]:
    """Break off when the log says that `update` is done."""
    return at("write", action, text=f'"num_updates": "{update}"')


def losses(folder: Path) -> dict[int, list[float]]:
    """Every loss that the log has of an update: several if it was done again after an interruption."""
    found, log = defaultdict(list), folder / "train.log"
    for record in updates(log.read_text()) if log.is_file() else ():
        found[int(record["num_updates"])].append(record["loss"])
    return dict(found)


def longer(*faults, fast: int = 1):
    """Where to break off: all `faults` if more than one round is requested, else only the first ones."""
    return faults if ROUNDS > 1 else faults[:fast]


def same_losses(folder: Path, unbroken: Path, tolerance: float = 0.0) -> bool:
    """Whether all updates are there, with the losses of the run that nothing happened to."""
    ours, theirs = losses(folder), losses(unbroken)
    return ours.keys() == theirs.keys() and all(
        abs(loss - theirs[update][0]) <= tolerance for update in ours for loss in ours[update]
    )


def check_resumes(training: "Training", folder: Path, unbroken: Path, tolerance: float = 0.0) -> None:
    """Left alone, the run ends with the losses of an undisturbed run."""
    assert training.run(folder) == [0]
    assert same_losses(folder, unbroken, tolerance)


@dataclass(frozen=True)
class Training:
    """train_lm.sh's command on a small model."""

    warm: Warm
    config: Path
    data: Path

    def command(self, folder: Path, *extra: str) -> list[str]:
        """The words behind `python -m lab`."""
        words = ["scripts/train_lm.sh", str(self.config), str(self.data), "--gpus", "0"]
        return [*words, "--save-dir", str(folder), *extra]

    def start(
        self, command: Sequence[str], fault: dict[str, str] | None = None, group: int | None = None
    ) -> Started:
        """Start a command; `fault` is what `at` gives, `group` the process group it joins."""
        return Started(self.warm, list(command), fault or {}, group)

    def run(
        self, folder: Path, *extra: str, processes: int = 1, fault: dict[str, str] | None = None
    ) -> list[int]:
        """Run in one process or as several nodes; the exit codes. A fault hits the group they all are in."""
        commands = [self.command(folder, *extra)]
        if processes > 1:
            nodes = ["--nodes", str(processes), "--master", f"127.0.0.1:{free_port()}", "--node-rank"]
            commands = [[*commands[0], *nodes, str(rank)] for rank in range(processes)]
        started, group = [], None
        for command in commands:
            started.append(self.start(command, fault, group))
            group = started[0].pid
        outputs = [process.communicate() for process in started]
        codes = [process.returncode for process in started]
        if fault is None and any(codes):
            print(outputs)
        return codes
