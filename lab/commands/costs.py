"""Measure again the committed costs on a CPU that other sources than those of today have measured.

The most valuable come first, the language models of README's picture. What an interrupted command has
measured stays; run it again to resume. The machine should do nothing else, and all code should be committed.
"""

import argparse
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from lab.commands.make_results import environments, is_of_today
from lab.console import Parser
from lab.errors import UserError
from lab.files import MEASURED, ROOT, read_json, shown_path

BY_VALUE = (
    "lm_cost",
    "roberta_cost",
    "attention_cost",
    "lra_cost",
    "lra_speed",
    "speech_cost",
    "image_cost",
)
"""The benchmarks that resume, by what their figures are worth to a reader."""


def parse(words: Sequence[str]) -> argparse.Namespace:
    parser = Parser("scripts/lab.sh costs", __doc__)
    parser.add_argument("--dry-run", action="store_true", help="print the commands only")
    parser.add_argument("--uncommitted", action="store_true", help="measure code that is in no commit")
    return parser.parse_args(words)


def renewal(path: Path) -> list[str]:
    """The words that measure a record again, or what is missing of it, with the settings that it has.

    `--restart` throws away figures of other sources, once: those of a renewal that was interrupted are kept.
    """
    record = read_json(path)
    words = [f"benchmarks/{record['benchmark']}.py", "--device", "cpu"]
    words += ["--architectures", ",".join(record["settings"]["architectures"])]
    if limit := record["settings"].get("time_limit"):
        words += ["--time-limit", f"{limit:g}"]
    if not all(map(is_of_today, environments(record))):
        words.append("--restart")
    return [*words, "--out", shown_path(path)]


def main() -> None:
    """Run each benchmark; one that fails ends the command, which then resumes there."""
    options = parse(sys.argv[1:])
    for name in BY_VALUE:
        words = renewal(MEASURED / f"{name}_cpu.json")
        words += ["--uncommitted"] if options.uncommitted else []
        print(" ".join(words), flush=True)
        if not options.dry_run and subprocess.run([sys.executable, *words], cwd=ROOT).returncode:
            raise UserError(f"{words[0]} has failed, as it says above; run scripts/lab.sh costs to resume")
