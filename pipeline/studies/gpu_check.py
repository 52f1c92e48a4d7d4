"""The parts of gpu_check.sh, each with a time limit, their logs and a summary in one folder."""

import importlib.util
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Collection
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from pipeline.commands.studies.gpu_check import PARTS, parse
from pipeline.files import ROOT, write_atomically

NO_GPU = 2
ARCHITECTURES = ("transnormer_t1", "transnormer_t2", "transformer_lm")


@dataclass(frozen=True)
class Part:
    """A command, the seconds it may take and a package that it needs."""

    name: str
    command: list[str]
    seconds: int
    needs: str = "torch"


def parts(out: Path, data: Path | None, only: Collection[str] = PARTS) -> list[Part]:
    """The commands in order; their limits add up to less than eleven minutes."""
    python = sys.executable
    operator = [python, "-m", "benchmarks.operator_cost", "--out", str(out), "--device", "cuda"]
    operator += ["--dtype", "bfloat16", "--batch", "8", "--heads", "12"]
    models = [python, "-m", "benchmarks.lm_cost", "--device", "cuda", "--time-limit", "25"]
    models += ["--lengths", "2048,16384", "--rounds", "1", "--architectures", ",".join(ARCHITECTURES)]
    models += ["--out", str(out / "lm_cost.json")]
    build = ["env", "CAUSAL_LINEAR_ATTENTION_CUDA=force", python, "setup.py", "build_ext", "--inplace"]
    tests = [python, "-m", "pytest", "-q", "-m", "cuda", "-p", "no:cacheprovider", "tests/operator"]
    triton = "tests/operator/triton"
    chosen = [
        Part("build", build, 100),
        Part("info", [python, "-m", "causal_linear_attention.info", "--json"], 25),
        Part("tests", [*tests, f"--ignore={triton}"], 70),
        Part("triton", [*tests[:-1], triton], 120),
        Part("operator", [*operator, "--lengths", "2048", "8192", "16384", "65536"], 90),
        Part("models", models, 125, "fairseq"),
    ]
    if data is not None:
        chosen += [Part(f"train-{x}", training(x, data, out), 40, "fairseq") for x in ARCHITECTURES]
    return [part for part in chosen if part.name.partition("-")[0] in only]


def training(architecture: str, data: Path, out: Path) -> list[str]:
    """200 updates in bf16, the same batches and learning rate for every architecture."""
    command = [sys.executable, "-m", "fairseq_cli.train", str(data), "--user-dir", "user_dir"]
    command += ["--task", "language_modeling", "--arch", architecture, "--bf16", "--max-update", "200"]
    command += ["--tokens-per-sample", "512", "--max-tokens", "8192", "--optimizer", "adam", "--lr", "5e-4"]
    command += ["--log-interval", "20", "--log-format", "json", "--no-save", "--disable-validation"]
    command += ["--save-dir", str(out / f"train-{architecture}")]  # fairseq makes it and leaves it empty
    if architecture == "transformer_lm":
        command.append("--share-decoder-input-output-embed")
    return command


def run_part(part: Part, out: Path) -> dict:
    """Runs it with its output in OUT/<name>.log; never raises for what the command does."""
    if importlib.util.find_spec(part.needs) is None:
        return {"part": part.name, "outcome": f"left out without {part.needs}", "seconds": 0.0}
    start = time.monotonic()
    with (out / f"{part.name}.log").open("w", encoding="utf-8") as log:
        # A session of its own: what the command has started ends with it.
        process = subprocess.Popen(
            part.command, stdout=log, stderr=subprocess.STDOUT, cwd=ROOT, start_new_session=True
        )
        try:
            code = process.wait(part.seconds)
            outcome = "passed" if code == 0 else f"failed with exit code {code}"
        except subprocess.TimeoutExpired:
            outcome = f"stopped after {part.seconds} s"
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    return {"part": part.name, "outcome": outcome, "seconds": round(time.monotonic() - start, 1)}


def has_gpu() -> bool:
    if importlib.util.find_spec("torch") is None:
        return False
    import torch

    return torch.cuda.is_available()


def main() -> None:
    """Entry point."""
    options = parse(sys.argv[1:])
    if not has_gpu():
        print("error: no GPU that torch can use was found; run this on a machine with one", file=sys.stderr)
        sys.exit(NO_GPU)
    out = options.out.resolve()
    out.mkdir(parents=True, exist_ok=True)
    results = []
    for part in parts(out, options.data.resolve() if options.data else None, options.only):
        results.append(run_part(part, out))
        write_atomically(out / "gpu_check.json", (json.dumps(results, indent=1) + "\n").encode())
        print("{part:22} {outcome} ({seconds} s)".format(**results[-1]), flush=True)
    done = all(x["outcome"] == "passed" or x["outcome"].startswith("left out") for x in results)
    sys.exit(0 if done else 1)
