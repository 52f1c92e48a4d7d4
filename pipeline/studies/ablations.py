"""The ablations of TransNormer's tables: pre-train what is missing, and the table beside the paper's."""

import argparse
import shlex
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch

from pipeline.commands.studies.run_ablations import parse
from pipeline.data.prepared import PreparedData, open_prepared
from pipeline.errors import UserError
from pipeline.evaluation import masked_lm as eval_mlm
from pipeline.files import ROOT, begin, fingerprint, once, shown_path, write_atomically
from pipeline.papers import read_table
from pipeline.provenance import environment
from pipeline.reports.tables import markdown_table
from pipeline.training.encoder_checkpoint import read_encoder
from pipeline.training.recipe import Experiment, read_experiment
from pipeline.training.train import Machines, train

T1_AND_T2 = {"t1_": "t1_ppl_val", "t2_": "t2_ppl_val"}


@dataclass(frozen=True)
class Ablation:
    """A table of the paper: its file, our configuration for each of its rows, its columns by prefix.

    `reading` says how a row is read that the paper does not define.
    """

    table: str
    rows: tuple[str, ...]
    columns: dict[str, str]
    reading: str = ""

    def configurations(self) -> list[str]:
        """The names of the YAMLs."""
        return [prefix + row for row in self.rows for prefix in self.columns]


ABLATIONS = {
    "ablation_01_scaling": Ablation(
        "transnormer_01_scaling_ablation", ("elu", "elu_unscaled", "norm"), {"": "ppl_val"}
    ),
    "ablation_03_dilution": Ablation(
        "transnormer_03_dilution_ablation", ("elu_elu", "elu_softmax", "softmax_elu"), {"": "ppl_val"}
    ),
    "ablation_08_proportion": Ablation(
        "transnormer_08_proportion", ("diag0", "diag3", "diag6", "diag9", "diag12"), T1_AND_T2
    ),
    "ablation_09_order": Ablation("transnormer_09_order", ("norm_diag", "diag_norm"), T1_AND_T2),
    "ablation_10_ffn": Ablation("transnormer_10_ffn", ("ffn", "glu"), T1_AND_T2),
    "ablation_11_block_size": Ablation(
        "transnormer_11_block_size", ("block32", "block64", "block128"), T1_AND_T2
    ),
    "ablation_12_combination": Ablation(
        "transnormer_12_combination",
        ("alternating_diag_norm", "alternating_norm_diag", "parallel", "transnormer"),
        T1_AND_T2,
        "Alternating: the layers take turns, the one named first begins. Parallel: every layer has both, "
        "each with maps of its own, and adds their outputs.",
    ),
}


def run(
    experiment: Experiment, data: PreparedData, save_dir: Path, options: argparse.Namespace, extra: list[str]
) -> dict[str, Any]:
    """The result of one configuration: what is there already, or trained and evaluated now."""
    mark = fingerprint([experiment.settings, extra, data.manifest.get("splits")])
    make = partial(measure, experiment, data, save_dir, mark, options.gpus, extra)
    return once(save_dir / "ablation.json", mark, make, experiment.name)


def measure(
    experiment: Experiment, data: PreparedData, save_dir: Path, mark: str, gpus: int, extra: list[str]
) -> dict[str, Any]:
    """Train (or resume) in `save_dir` and evaluate; the record of one configuration."""
    begin(save_dir, "run_ablations.sh", mark)
    train(experiment.config, data.folder, Machines(gpus), save_dir, extra)
    evaluated = eval_mlm.evaluate(read_encoder(save_dir / "checkpoint_best.pt"), data, ["valid"])["valid"]
    return {
        "configuration": experiment.name,
        "settings": experiment.settings,
        "extra_flags": shlex.join(extra),
        "valid_perplexity": evaluated["perplexity_per_token"],
        "updates": evaluated["updates"],
        "parameters": evaluated["parameters"],
        "corpus": evaluated["corpus"],
        **environment("cuda" if gpus else "cpu"),
    }


def table(ablation: Ablation, results: dict[str, dict[str, Any]]) -> str:
    """The paper's table with our perplexities, as far as they are there, behind its own."""
    paper = read_table(ablation.table)
    shown = [key for key in paper[0] if key not in ablation.columns.values()]
    header = list(shown)
    for column in ablation.columns.values():
        header += [f"{column}, paper", f"{column}, here"]
    lines = []
    for row, stem in zip(paper, ablation.rows, strict=True):
        line = [row[key] for key in shown]
        for prefix, column in ablation.columns.items():
            ours = results.get(prefix + stem)
            line += [row[column], f"{ours['valid_perplexity']:.2f}" if ours else "–"]
        lines.append(line)
    notes = " ".join(note for note in (ablation.reading, setting(results)) if note)
    return f"{markdown_table(header, lines)}\n\n{notes}"


def setting(results: dict[str, dict[str, Any]]) -> str:
    """In what our figures differ from the paper's, once for all that agree."""
    sentences = {
        f"Here: masked-LM perplexity of the valid split of {record['corpus']} after "
        f"{record['updates']:,} updates (best checkpoint), flags added: {record['extra_flags'] or 'none'}."
        for record in results.values()
    }
    return " ".join(sorted(sentences))


def chosen(word: str) -> Iterator[tuple[str, Ablation]]:
    """The ablation called `word`, or all."""
    if word != "all" and word not in ABLATIONS:
        raise UserError(f"there is no ablation {word}; there are {', '.join(ABLATIONS)}, or all")
    yield from ABLATIONS.items() if word == "all" else [(word, ABLATIONS[word])]


def read_configurations(folder: str, ablation: Ablation) -> dict[str, Experiment]:
    """The YAMLs of an ablation by name."""
    names = ablation.configurations()
    return {name: read_experiment(ROOT / "configs" / folder / f"{name}.yaml") for name in names}


def main() -> None:
    """Entry point."""
    options, extra = parse(sys.argv[1:])
    if options.gpus is None:
        options.gpus = torch.cuda.device_count()
    todo = {folder: read_configurations(folder, ablation) for folder, ablation in chosen(options.which)}
    wanted = {options.data or one.data_folder() for group in todo.values() for one in group.values()}
    data = {place: open_prepared(place, ("train", "valid")) for place in wanted}  # missing data are one error
    failures = []
    for folder, experiments in todo.items():
        results = {}
        out = options.out.absolute() / folder
        for name, experiment in experiments.items():
            prepared = data[options.data or experiment.data_folder()]
            try:
                results[name] = run(experiment, prepared, out / name, options, extra)
            except UserError as error:
                failures.append(f"{folder}/{name}: {error}")
                print(f"error: {failures[-1]}", flush=True)
        if not results:
            continue
        text = table(ABLATIONS[folder], results)
        out.mkdir(parents=True, exist_ok=True)
        write_atomically(out / "table.md", (text + "\n").encode())
        print(f"{text}\nwritten: {shown_path(out / 'table.md')}", flush=True)
    if failures:
        raise UserError(f"{len(failures)} configurations failed, the first: {failures[0]}")
