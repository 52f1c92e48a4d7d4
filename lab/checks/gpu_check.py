"""Check and measure this project on a machine with an NVIDIA GPU, in two commands of under ten minutes.

    scripts/lab.sh check gpu correctness --out DIR
    scripts/lab.sh check gpu speed --out DIR

The parts of correctness, all but the first in parallel:

    kernels     use kernels built elsewhere if they fit, else build them for this GPU
    info        list the backends and test each of them
    tests       run the tests of the CUDA kernels
    triton      run the tests of the Triton kernels
    models      compare every attention with itself on a CPU, train every architecture in fp16 and bf16,
                check the Triton kernels of the loss
    memcheck    watch one forward and backward pass with compute-sanitizer
    racecheck   the same, for races

The parts of speed:

    anchor      flash-linear-attention's shapes, for which Helion publishes times
    operator    the operator by length
    lm, roberta training cost in bf16
    loss        the loss over up to 267,744 words
    train-transnormer_t1, train-transformer_lm
                500 updates at the size of WikiText-103's models, and the hours that 100,000 would take

Every part writes a log to DIR, which also holds gpu_check.json and, with all results, gpu_check.tar.gz. A
part that fails or takes too long does not stop the next one; a part in which nothing ran has failed. After
ten minutes the command ends, with exit code 75 if parts are left: run it again for these and for the failed
ones. PYTHON names the interpreter (default: .venv's, else python3); it needs torch, setuptools, pytest and
hypothesis, for speed also matplotlib and hydra-core, for models fairseq. The command downloads nothing.
"""

import argparse
import errno
import importlib.util
import io
import json
import os
import re
import signal
import subprocess
import sys
import tarfile
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

from conventions import STOPPED
from lab.checks.gpu_parts import PARTS, Part, parts
from lab.console import Parser
from lab.errors import UserError
from lab.files import ROOT, check_output_folder, read_json, write_atomically, write_json
from lab.provenance import environment, hardware, portable_command
from lab.run.launch import gpu_count
from lab.run.log import peak_memory, read_log, settled, usual_speed

NO_GPU = 2
SECONDS = 585
"""Time limit of one command in seconds: ten minutes, minus its own start and end."""
LEAST_SECONDS = 30
"""No part starts with less time than this left."""
POLL_SECONDS = 0.1
PASSED = "passed"
RECORD, ARCHIVE = "gpu_check.json", "gpu_check.tar.gz"
LARGE = 2 * 2**20
"""Larger files (random words) are not results."""
# pytest's last line, and the reasons that -ra lists.
RAN = re.compile(r"\b(\d+)(?:/\d+)? (?:passed|tests? collected)\b")
SKIPPED = re.compile(r"^SKIPPED \[\d+\] \S+: (.+)$", re.MULTILINE)
# TransNormer's recipe (configs/wikitext103/base.yaml): 100,000 updates of 128 sequences of 512 tokens.
WIKITEXT103_TOKENS = 100_000 * 128 * 512


def parse(words: Sequence[str]) -> argparse.Namespace:
    parser = Parser("scripts/lab.sh check gpu", __doc__)
    parser.add_argument("stage", choices=tuple(PARTS), metavar="STAGE", help=f"one of {', '.join(PARTS)}")
    note = "folder for logs and results (required)"
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help=note)
    note = "prepared corpus of the trainings (default: random words with WikiText-103's vocabulary)"
    parser.add_argument("--data", type=Path, metavar="DATA", help=note)
    parser.add_argument("--only", metavar="NAMES", help="parts of the stage to run, separated by commas")
    note = "every part on the CPU with tiny sizes, without a GPU: tries the commands, measures nothing"
    parser.add_argument("--dry-run", action="store_true", help=note)
    options = parser.parse_args(words)
    known = PARTS[options.stage]
    options.only = tuple((options.only or ",".join(known)).split(","))
    if unknown := [name for name in options.only if name not in known]:
        parser.error(f"{options.stage} has no part {unknown[0]!r}; choose some of {', '.join(known)}")
    if options.data is not None and not (options.data / "dict.txt").is_file():
        parser.error(f"{options.data} holds no dict.txt: it is not a prepared corpus")
    return options


@dataclass
class RunningPart:
    """A started part: its process, or why it has none, and its deadline."""

    part: Part
    log: Path
    start: float
    deadline: float
    process: subprocess.Popen[bytes] | None = None
    outcome: str = ""

    def ended(self) -> bool:
        """Whether it has an outcome; a part that exceeds its time is stopped."""
        if self.process is None:
            return True
        if (code := self.process.poll()) is not None:
            self.outcome = PASSED if code == 0 else f"failed with exit code {code}"
            return True
        if time.monotonic() < self.deadline:
            return False
        self.outcome = f"stopped after {self.deadline - self.start:.0f} s"
        return True

    def kill(self) -> None:
        """Kill the command's process group."""
        if self.process is not None:
            with suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)
            self.process.kill()  # if it has not yet become the group's leader
            self.process.wait()

    def result(self) -> dict[str, Any]:
        """Its entry in the record."""
        if self.part.tests and self.outcome == PASSED:
            self.outcome = outcome_of_tests(self.log.read_text(encoding="utf-8", errors="replace"))
        seconds = round(time.monotonic() - self.start, 1)
        command = portable_command(self.part.command)
        record = {"part": self.part.name, "outcome": self.outcome, "seconds": seconds, "command": command}
        if self.part.log is not None and self.outcome == PASSED:
            record |= speed_of_training(self.part.log)
        return record


def begin(part: Part, out: Path, seconds: float) -> RunningPart:
    """Start the part, with its output in OUT/<name>.log; a failure becomes its outcome."""
    now = time.monotonic()
    running = RunningPart(part, out / f"{part.name}.log", now, now + min(seconds, part.seconds))
    if missing := [name for name in part.needs if importlib.util.find_spec(name) is None]:
        running.outcome = f"failed: this Python has no {missing[0]}"
        return running
    try:
        with running.log.open("wb") as file:
            # In its own session, so that its child processes end with it.
            running.process = subprocess.Popen(
                part.command, stdout=file, stderr=subprocess.STDOUT, cwd=ROOT, start_new_session=True
            )
    except OSError as error:
        if error.errno not in (errno.ENOENT, errno.EACCES):
            raise
        running.outcome = f"failed: there is no program {part.command[0]}"
    return running


def run_together(parts: Sequence[Part], out: Path, seconds: float) -> Iterator[dict[str, Any]]:
    """Run them side by side for `seconds` at most; the result of each as it ends."""
    left: list[RunningPart] = []
    try:
        for part in parts:
            left.append(begin(part, out, seconds))
        while left:
            for running in [x for x in left if x.ended()]:
                left.remove(running)
                running.kill()
                yield running.result()
            time.sleep(POLL_SECONDS if left else 0)
    finally:
        for running in left:
            running.kill()


def outcome_of_tests(log: str) -> str:
    """The outcome of a pytest that ended without an error; it has failed if no test ran."""
    if any(int(number) for number in RAN.findall(log)):
        return PASSED
    reasons = SKIPPED.findall(log)
    return f"failed: no test ran ({reasons[0]})" if reasons else "failed: no test ran"


def speed_of_training(log: Path) -> dict[str, float]:
    """Tokens per second of the second half of a training, and hours for the recipe on WikiText-103."""
    records = read_log(log)
    median = usual_speed(record["wps"] for record in settled(records))
    if median is None:
        return {}
    figures = {"tokens_per_second": median, "wikitext103_hours": WIKITEXT103_TOKENS / median / 3600}
    return figures | {"peak_memory_bytes": peak_memory(records)}


def machine(dry: bool) -> dict[str, Any]:
    """What the results depend on: the GPU and the sources of its kernels."""
    from causal_linear_attention.sources import fingerprint  # loads torch, which takes seconds

    sources = fingerprint(ROOT / "causal_linear_attention" / "csrc")
    gpu = "" if dry else hardware("cuda" if gpu_count() else "cpu").get("gpu", "")
    return {"sources": sources, "gpu": gpu, "dry_run": dry}


def earlier(path: Path, here: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """The results so far, by part; UserError if they come from another GPU or other kernels."""
    if not path.exists():
        return {}
    record = read_json(path)
    if not isinstance(record, dict) or record.get("machine") != here:
        raise UserError(f"{path} comes from another GPU or other kernels; name another folder with --out")
    return {x["part"]: x for x in record["parts"]}


def pack(out: Path) -> None:
    """Pack OUT into OUT/gpu_check.tar.gz, without large files and the archive itself."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
        for path in sorted(out.rglob("*")):
            if path.is_file() and path.name != ARCHIVE and path.stat().st_size <= LARGE:
                archive.add(path, path.relative_to(out).as_posix())
    write_atomically(out / ARCHIVE, buffer.getvalue())


def run(chosen: list[Part], out: Path, here: dict[str, Any], seconds: float = SECONDS) -> int:
    """Run the missing parts, write record and archive after each, and return the exit code."""
    deadline = time.monotonic() + seconds
    results, where = earlier(out / RECORD, here), environment("cuda" if gpu_count() else "cpu")
    order = dict.fromkeys([*results, *(part.name for part in chosen)])
    waiting = []
    for part in chosen:
        if results.get(part.name, {}).get("outcome") == PASSED:
            show(results[part.name], " before")
        else:
            waiting.append(part)
    for _, group in groupby(waiting, key=lambda part: part.name if part.alone else ""):
        together = {part.name: part for part in group}
        left, stopped = deadline - time.monotonic(), False
        if left < LEAST_SECONDS:
            print("ten minutes are over; run the same command again for the other parts", flush=True)
            return STOPPED
        for result in run_together(list(together.values()), out, left):
            results[result["part"]] = result
            done = [results[name] for name in order if name in results]
            write_json(out / RECORD, {"machine": here, "environment": where, "parts": done})
            pack(out)
            show(result)
            late = left < together[result["part"]].seconds
            stopped |= late and result["outcome"].startswith("stopped")
        if stopped:
            return STOPPED
    return 0 if all(results[part.name]["outcome"] == PASSED for part in chosen) else 1


def show(result: dict[str, Any], when: str = "") -> None:
    """One line for a part."""
    text = "{part:22} {outcome}{when} ({seconds} s)".format(**result, when=when)
    if "tokens_per_second" in result:
        text += ", {tokens_per_second:,.0f} tokens/s; WikiText-103: {wikitext103_hours:.1f} h".format(
            **result
        )
    print(text, flush=True)


def main(options: argparse.Namespace) -> None:
    """Run the missing parts of a stage and exit with the result."""
    if not options.dry_run and not gpu_count():
        print("error: no GPU that torch can use was found; run this on a machine with one", file=sys.stderr)
        sys.exit(NO_GPU)
    out = options.out.resolve()
    check_output_folder(out, "--out")
    out.mkdir(parents=True, exist_ok=True)
    here = machine(options.dry_run)
    print(json.dumps(here), flush=True)
    wanted = [name for name in PARTS[options.stage] if name in options.only]
    every = {part.name: part for part in parts(out, options.data and options.data.resolve(), options.dry_run)}
    code = run([every[name] for name in wanted], out, here)
    print(f"results: {out / ARCHIVE}", flush=True)
    sys.exit(code)
