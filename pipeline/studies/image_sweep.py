"""Images byte by byte: attentions x seeds (the command behind measure_images.sh)."""

import sys
from argparse import Namespace
from base64 import b64encode
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from pipeline.commands.studies.measure_images import parse
from pipeline.evaluation.image_likelihood import bits_per_dimension
from pipeline.evaluation.sample_images import draw, uniforms
from pipeline.files import ROOT
from pipeline.provenance import environment
from pipeline.reports.pixels import plot_pixels, read_results, write_pixel_table
from pipeline.sequence_methods import PIXEL_METHODS, choose_from
from pipeline.studies.image_cell import ImageCell
from pipeline.studies.measured_cell import (
    check_flags,
    first_seed,
    publish,
    run_missing,
    train_and_measure,
)
from pipeline.studies.parallel_runs import parallel_jobs
from pipeline.training.figures import peak_memory, read_log, training_seconds
from pipeline.training.image_run import ImageCheckpoint, open_data, read_image_checkpoint
from pipeline.training.process.resume import LAST
from pipeline.training.recipe import read_experiment
from user_dir.tasks.image_data import ImageData

COMMAND = "measure_images.sh"
SPLITS = ("train", "valid", "test")
SHOWN = 10  # images drawn, and as many completed
# Flags that differ from run to run, and the option to use instead.
OURS = {"--decoder-attention": "--attention", "--seed": "--seeds", "--save-dir": "--out"}


def run_cell(cell: ImageCell, place: int, jobs: int) -> str:
    """Train (or resume) and measure a cell at one of `jobs` places; its figure in a few words."""
    result = train_and_measure(cell, COMMAND, place, jobs, partial(measured, cell, place))
    return f"{result['bits_per_dimension']['test']:.4f} bits per dimension on test"


def measured(cell: ImageCell, place: int) -> dict[str, Any]:
    """The result of a trained cell, as table and picture need it."""
    device = torch.device("cuda", place) if torch.cuda.is_available() else torch.device("cpu")
    checkpoint = read_image_checkpoint(cell.folder / LAST, cell.data.folder, device)
    size, shape, log = checkpoint.batch_size, cell.data.shape, cell.folder / "train.log"
    preset = cell.experiment.config.stem.removesuffix(f"_{cell.method}")
    found = {split: bits_per_dimension(checkpoint, split, size, device) for split in SPLITS}
    return {
        **cell.about(preset, checkpoint),
        "shape": [shape.height, shape.width, shape.channels],
        "levels": shape.levels,
        "images": {split: figures["images"] for split, figures in found.items()},
        "bits_per_dimension": {split: figures["bits_per_dimension"] for split, figures in found.items()},
        "without_a_model": without_a_model(cell.data),
        "pictures": pictures(checkpoint, cell.data, device),
        "train_seconds": training_seconds(log),
        "peak_memory_bytes": peak_memory(read_log(log)),
        "environment": environment(device.type),
    }


def without_a_model(data: ImageData) -> dict[str, float]:
    """Bits per dimension on test of frequencies counted on train, one added to each count."""
    train, test = (np.array(data.images(split)).reshape(-1, data.shape.dims) for split in ("train", "test"))
    counts = np.ones((data.shape.dims, data.shape.levels))
    for place, column in enumerate(train.T):
        counts[place] += np.bincount(column, minlength=data.shape.levels)
    alone, together = counts, counts.sum(0, keepdims=True)
    bits = {
        "one histogram per place": -np.log2(alone / alone.sum(1, keepdims=True)),
        "one histogram": np.broadcast_to(-np.log2(together / together.sum()), counts.shape),
    }
    places = np.arange(data.shape.dims)
    return {
        "all levels alike": float(np.log2(data.shape.levels)),
        **{name: float(table[places, test].mean()) for name, table in bits.items()},
    }


def pictures(checkpoint: ImageCheckpoint, data: ImageData, device: torch.device) -> dict[str, str]:
    """Images that are drawn, test images, and these with the lower half drawn: bytes in base64."""
    shape, eos = data.shape, checkpoint.task.dictionary.eos()
    true = np.array(data.images("test")[:SHOWN])
    upper = true[:, : shape.height // 2].reshape(len(true), -1)
    chance = uniforms(0, range(len(true)), shape.dims).to(device)
    found = {"test images": true}
    for name, given in (("drawn", upper[:, :0]), ("completed", upper)):
        begin = torch.from_numpy(given.astype(np.int64)).to(device)
        found[name] = draw(checkpoint.model, eos, shape.dims, begin, chance).cpu().numpy().astype(np.uint8)
    return {name: b64encode(images.tobytes()).decode() for name, images in found.items()}


def cells_of(options: Namespace, flags: Sequence[str], out: Path) -> list[ImageCell]:
    """All runs that are asked for, seed by seed."""
    configs = {name: ROOT / "configs" / "images" / f"{options.preset}_{name}.yaml" for name in PIXEL_METHODS}
    configs = {name: path for name, path in configs.items() if path.is_file()}
    recipes = {name: read_experiment(configs[name]) for name in choose_from(configs, options.attention)}
    folder = options.data or next(iter(recipes.values())).data_folder()
    data = open_data(folder.absolute(), SPLITS)
    return [
        ImageCell(recipe, name, first_seed(recipe) + number, tuple(flags), out, data)
        for number in range(options.seeds)
        for name, recipe in recipes.items()
    ]


def sweep(options: Namespace, flags: Sequence[str]) -> None:
    """Run what is missing and write table and picture of all that lies in the folder."""
    check_flags(flags, OURS)
    jobs = parallel_jobs(options.jobs)
    out = (options.out or ROOT / "runs" / "images" / options.preset).absolute()
    work = partial(run_cell, jobs=jobs)
    failures = run_missing(f"images, {options.preset}", cells_of(options, flags, out), jobs, work, out)
    publish(read_results(out), out / "images", write_pixel_table, plot_pixels, failures)


def main() -> None:
    """Entry point."""
    sweep(*parse(sys.argv[1:]))
