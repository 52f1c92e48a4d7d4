"""Write one HTML page about runs: models, settings, curves, results, costs and environments.

The page is a single file that loads nothing from a network. A click on a header sorts a table, and the
browser chooses light or dark. The page covers everything in and below the folders RUNS: logs of training
runs, unfinished ones included, and the results of scripts/ and benchmarks/ (perplexities, GLUE, Long Range
Arena, cost, figures of the analysis).
"""

import argparse
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lab.console import Parser
from lab.errors import MALFORMED, UserError
from lab.files import ROOT, begins, check_output, is_generated, read_json, shown_path, write_atomically
from lab.publish.html import GENERATOR, Link, Page, Part, Section, Table, markdown_parts, png, render
from lab.publish.report_runs import find_runs, run_name, training_sections, written
from lab.publish.tables import shown, where
from lab.run.folder import is_aside
from lab.store import STORE, stored


def parse(words: Sequence[str]) -> argparse.Namespace:
    parser = Parser("scripts/lab.sh report", __doc__)
    parser.add_argument(
        "runs",
        type=Path,
        nargs="*",
        metavar="RUNS",
        help="folders of runs, searched recursively (default: runs)",
    )
    parser.add_argument(
        "--out",
        type=Path,
        default=Path("report.html"),
        metavar="FILE",
        help="the page (default: %(default)s)",
    )
    return parser.parse_args(words)


def report(folders: Sequence[Path], beside: Path) -> Page:
    """The page about what lies below `folders`, to be written in the folder `beside`."""
    for folder in folders:
        if not folder.is_dir():
            found = f"{folder} is a file" if folder.exists() else f"there is no folder {folder}"
            raise UserError(f"RUNS: {found}; name folders of runs")
    runs = find_runs(folders)
    sections = [*training_sections(runs, beside), *result_sections(find_results(folders, beside))]
    sections = [section for section in sections if section.parts]
    names = ", ".join(map(shown_path, folders))
    if not sections:
        raise UserError(f"{names} holds neither runs nor results; train a model first, or name other folders")
    finished = sum(run.finished for run in runs)
    summary = f"{len(runs)} training runs in {names}, {finished} of them finished."
    return Page("Report of training runs", summary, sections)


def main(options: argparse.Namespace) -> None:
    """Write the page."""
    out = options.out.absolute()
    check_output(out, begins(f'<meta name="generator" content="{GENERATOR}">', within=500))
    folders = [folder.absolute() for folder in options.runs or [ROOT / "runs"]]
    page = report(folders, out.parent)
    write_atomically(out, render(page).encode())
    print(f"written to {shown_path(out)}")


LARGEST = 20 * 2**20
"""Bytes of a JSON file that is read; the commands' results are far smaller, corpora larger."""


@dataclass(frozen=True)
class Result:
    """A JSON object in `path`, which is called `name` in the page; `link` leads to the file."""

    name: str
    path: Path
    record: dict[str, Any]
    link: Link

    @property
    def study_folder(self) -> Path:
        """The folder of a study's page, above the choices and the seed's file of its record."""
        parents = self.path.parents  # fewer than the choices if the file was moved
        return parents[min(len(self.record["cell"]), len(parents)) - 1]


TELLING = ("architecture", "seed", "updates", "split", "perplexity_per_token", "context_window")
"""Settings in which two evaluations differ."""

OF_LRA = {"task", "attention", "accuracy", "preset", "training_data", "updates", "seed", "split", "examples"}
"""Keys that identify an evaluation of Long Range Arena."""


def find_results(folders: Iterable[Path], beside: Path) -> list[Result]:
    """The JSON objects below `folders`, without damaged, hidden and moved files (by --fresh).

    Links lead from a page in the folder `beside`.
    """
    found: dict[Path, Result] = {}
    for folder in folders:
        for path in sorted(folder.rglob("*.json")):
            if path.resolve() in found or path.name.startswith(".") or is_aside(path, folder):
                continue
            if not path.is_file() or path.stat().st_size > LARGEST:  # it may be a link that leads nowhere
                continue
            try:
                record = read_json(path)
            except UserError:
                continue
            if isinstance(record, dict):
                link = Link(path.name, os.path.relpath(path, beside))
                found[path.resolve()] = Result(run_name(path, folder), path, record, link)
        for store in sorted(folder.rglob(STORE)):
            link = Link(store.name, os.path.relpath(store, beside))
            try:
                records = stored(store.parent)
            except UserError as error:
                print(f"left out: {error}", flush=True)
                continue
            for place, record in records.items():
                path = store.parent / place
                found.setdefault(path.resolve(), Result(run_name(path, folder), path, record, link))
    return list(found.values())


def result_sections(results: list[Result]) -> list[Section]:
    """The sections in the order of the page; those without results are empty."""
    readable = [result for result in results if is_readable(result)]
    sections = (perplexities, glue_results, lra_results, studies, costs, analysis, environments)
    return [section(readable) for section in sections]


def is_readable(result: Result) -> bool:
    """Whether the figures of a file are those of a command here; a file of other origin may lack some."""
    try:
        for section in (perplexities, glue_results, lra_results, environments):
            section([result])
        return isinstance(result.record.get("cell", {}), dict)
    except MALFORMED:
        return False


def environments_in(record: Any) -> Iterator[dict[str, Any]]:
    """The dictionaries in `record`, itself and those in lists included, that say where it was made."""
    if isinstance(record, dict):
        if {"commit", "hardware", "versions"} <= set(record):
            yield record
        record = list(record.values())
    if isinstance(record, list):
        for value in record:
            yield from environments_in(value)


def evaluations(record: dict[str, Any], around: dict[str, Any] | None = None) -> Iterator[dict[str, Any]]:
    """The perplexities in `record`, each with the entries of the objects around it; its key is its split."""
    merged = {
        **(around or {}),
        **{key: value for key, value in record.items() if not isinstance(value, dict)},
    }
    if "perplexity_per_token" in record:
        yield merged
    for key, value in record.items():
        if isinstance(value, dict):
            yield from evaluations(value, {**merged, "split": key})


def perplexities(results: list[Result]) -> Section:
    """Every evaluation of a model of text: of eval_ppl.sh, lab.sh evaluate mlm, and within other results."""
    header = (
        "model",
        "split",
        "corpus",
        "updates",
        "tokens per sample",
        "context",
        "perplexity per word",
        "perplexity per token",
        "bits per token",
        "result",
    )
    rows, seen, masked = [], set(), False
    for result in results:
        for part in evaluations(result.record):
            mark = tuple(str(part.get(key)) for key in TELLING)
            if mark in seen:  # a table of several models repeats their results
                continue
            seen.add(mark)
            masked = masked or "masked_tokens" in part
            rows.append(
                [
                    model_of(part, result),
                    part["split"],
                    written(part.get("corpus")),
                    shown(part.get("updates"), ",d"),
                    shown(part.get("tokens_per_sample"), ",d"),
                    "carried" if "streams" in part else shown(part.get("context_window"), ",d"),
                    shown(part.get("perplexity_per_word"), ",.2f"),
                    shown(part["perplexity_per_token"], ",.2f"),
                    shown(part.get("loss_bits_per_token"), ".4f"),
                    result.link,
                ]
            )
    note = ["Encoders: masked-LM perplexity, over the masked tokens."] if masked else []
    return Section("Perplexities", [*note, Table(header, rows)] if rows else [])


def model_of(evaluation: dict[str, Any], result: Result) -> str:
    """The architecture and the checkpoint, or the cell of a study, that were evaluated."""
    if "cell" in result.record:
        return result.name
    checkpoint = Path(evaluation.get("checkpoint", result.path))
    return f"{evaluation.get('architecture', '–')} ({checkpoint.parent.name}/{checkpoint.name})"


def glue_results(results: list[Result]) -> Section:
    """Every finished run of fine-tuning; the comparison with the papers is on the pages of the studies."""
    rows = []
    for result in results:
        found = result.record.get("found")
        if not isinstance(found, dict) or not {"dev", "learning_rate", "task", "score"} <= set(found):
            continue
        figures = "; ".join(
            f"{split} {name} {value:.2f}" for split, d in found["dev"].items() for name, value in d.items()
        )
        rows.append(
            [
                str(result.path.relative_to(result.study_folder).with_suffix("")),
                found["task"],
                f"{found['learning_rate']:g}",
                str(result.record["cell"]["seed"]),
                f"{result.record['training']['updates']:,}",
                figures,
                result.link,
            ]
        )
    header = ("run", "task", "learning rate", "seed", "updates", "dev, percent", "result")
    return Section("GLUE", [Table(header, rows, "Finished runs of fine-tuning:")] if rows else [])


def lra_results(results: list[Result]) -> Section:
    """Single evaluations."""
    rows = []
    for result in results:
        one = result.record
        if not OF_LRA.issubset(one):
            continue
        rows.append(
            [
                one["task"],
                one["attention"],
                one["preset"],
                (one["training_data"] or {}).get("origin", "–"),
                f"{one['updates']:,}",
                str(one["seed"]),
                one["split"],
                f"{one['examples']:,}",
                f"{one['accuracy']:.2f}",
                result.link,
            ]
        )
    header = (
        "task",
        "attention",
        "preset",
        "data",
        "updates",
        "seed",
        "split",
        "examples",
        "accuracy, percent",
        "result",
    )
    return Section("Long Range Arena", [Table(header, rows, "Single runs:")] if rows else [])


def studies(results: list[Result]) -> Section:
    """The pages of studies that have records among the results."""
    records = [result for result in results if {"study", "cell", "found"} <= set(result.record)]
    pages = dict.fromkeys(one.study_folder / "README.md" for one in records)
    texts = {page: page.read_text("utf-8", errors="replace") for page in pages if is_generated(page)}
    parts = [part for page, text in texts.items() for part in markdown_parts(text, page.parent)]
    return Section("Studies", parts)


def costs(results: list[Result]) -> Section:
    """Tables and plots that the benchmarks have written beside their records."""
    parts: list[Part] = []
    for result in results:
        text, plot = (result.path.with_suffix(suffix) for suffix in (".md", ".png"))
        if "perplexity_per_token" not in result.record and is_generated(text):
            parts += [f"{result.name}:", *markdown_parts(text.read_text(encoding="utf-8", errors="replace"))]
            if plot.is_file():
                parts.append(png(plot, f"plot of {result.path.stem}"))
    return Section("Cost benchmarks", parts)


def analysis(results: list[Result]) -> Section:
    """The figures of lab.sh figures."""
    return Section(
        "Analysis",
        [
            png(plot, result.record["title"], result.record["title"])
            for result in results
            if {"panels", "title"} <= set(result.record)
            and (plot := result.path.with_suffix(".png")).is_file()
        ],
    )


def environments(results: list[Result]) -> Section:
    """Where results were made: each machine, commit and set of versions once."""
    header = ("results", "commit", "machine", "memory, GiB", "versions", "first on", "last on", "one of them")
    groups: dict[tuple[str, ...], list[tuple[str, Result]]] = {}
    for result in results:
        for part in environments_in(result.record):
            versions = ", ".join(f"{name} {version}" for name, version in part["versions"].items())
            memory = str(part["hardware"].get("memory_gib", "–"))
            mark = (part["commit"], where(part), memory, versions)
            groups.setdefault(mark, []).append((part["date"], result))
    rows = [
        [str(len(made)), *mark, min(day for day, _ in made), max(day for day, _ in made), made[0][1].link]
        for mark, made in sorted(groups.items())
    ]
    return Section("Environment", [Table(header, rows)] if rows else [])
