"""Measure again the committed costs on a CPU whose sources have changed since.

The most valuable come first: the language models in README's picture. Run the command again to resume after
an interruption. It replaces records and pages in results/measured/. The machine should do nothing else, and
all code should be committed.
"""

import argparse
import subprocess
import sys
from collections.abc import Sequence
from itertools import chain
from pathlib import Path

from lab.console import Parser
from lab.errors import UserError
from lab.files import MEASURED, ROOT, read_json, shown_path
from lab.provenance import BENCHMARK_FOLDER, commit, stale

OPERATOR = "operator_cpu/operator_cost"
BY_VALUE = (
    "lm_cost_cpu",
    "roberta_cost_cpu",
    "attention_cost_cpu",
    OPERATOR,
    "operator_cpu/decay",
    "loss_cost_cpu",
    "lra_cost_cpu",
    "lra_speed_cpu",
    "speech_cost_cpu",
    "image_cost_cpu",
    "packed_cost_cpu",
    "model_parts/model_parts_cost",
)
"""The records, the most valuable to a reader first."""
AT_ONCE = {
    "operator_cost": ("operator_cost.py", "--device", "cpu"),
    "decay": ("operator_cost.py", "--decay", "--device", "cpu", "--threads", "1"),
    "packed_cost": ("packed_cost.py", "data/wikitext-2-sentencepiece-4000", "--device", "cpu"),
    "model_parts_cost": ("model_parts_cost.py",),
}
"""The commands of records that a benchmark measures in one go, without resuming."""
PEER_BUILDS = ("--fast-transformers", "--fast-transformers-tuned")


def parse(words: Sequence[str]) -> argparse.Namespace:
    parser = Parser("scripts/lab.sh costs", __doc__)
    parser.add_argument("--dry-run", action="store_true", help="print the commands only")
    parser.add_argument("--uncommitted", action="store_true", help="measure uncommitted code")
    for option, build in zip(PEER_BUILDS, ("as shipped", "with -O3 -march=native"), strict=True):
        text = f"pytorch-fast-transformers built {build}, to compare the operator with"
        parser.add_argument(option, metavar="DIR", type=Path, help=text)
    return parser.parse_args(words)


def renewal(path: Path) -> list[str]:
    """The command that renews or completes a record; empty for a current one of those AT_ONCE.

    The others resume, with the record's settings. `--restart` discards figures of other sources,
    once: figures of an interrupted renewal are kept.
    """
    record = read_json(path)
    name = record.get("benchmark") or path.stem.removesuffix("_cpu")
    if name in AT_ONCE:
        script, *rest = AT_ONCE[name]
        return [BENCHMARK_FOLDER + script, *rest, "--out", shown_path(path.parent)] if stale(record) else []
    settings, out = record.get("settings"), path if "settings" in record else path.parent
    words = [f"{BENCHMARK_FOLDER}{name}.py", "--device", "cpu"]
    if settings:
        words += ["--architectures", ",".join(settings["architectures"])]
        words += ["--time-limit", f"{limit:g}"] if (limit := settings.get("time_limit")) else []
    words += ["--restart"] if stale(record) else []
    return [*words, "--out", shown_path(out)]


def main(options: argparse.Namespace) -> None:
    """Run each benchmark; stop at the first failure, where the next run resumes."""
    if not (options.dry_run or options.uncommitted) and commit().endswith("+changes"):
        raise UserError(
            "the records would name a commit without your changes; commit them, or give --uncommitted"
        )
    builds = [one.resolve() for one in (options.fast_transformers, options.fast_transformers_tuned) if one]
    if missing := [one for one in builds if not one.is_dir()]:
        raise UserError(f"{missing[0]} is not a folder; name one with a build of fast-transformers")
    for name in BY_VALUE:
        if not (words := renewal(MEASURED / f"{name}.json")):
            continue
        if name == OPERATOR:
            if len(builds) < len(PEER_BUILDS):
                print(f"left out: {name}, which needs {' and '.join(PEER_BUILDS)}", flush=True)
                continue
            words += chain(*zip(PEER_BUILDS, map(str, builds), strict=True))
        words += ["--uncommitted"] if options.uncommitted and "--architectures" in words else []
        print(" ".join(words), flush=True)
        if not options.dry_run and subprocess.run([sys.executable, *words], cwd=ROOT).returncode:
            raise UserError(f"{words[0]} failed, see above; run scripts/lab.sh costs to resume")
