"""Prepare GLUE tasks for fine-tuning RoBERTa models: check, encode with the model's tokeniser, binarise.

FOLDER holds a folder a task with the files of the original download (train.tsv, dev.tsv, test.tsv;
MNLI dev_matched.tsv …; .tsv.gz as well; MRPC also as msr_paraphrase_*.txt with dev_ids.tsv). Each
task becomes a folder of --dest that fairseq's sentence_prediction task reads.
"""

import argparse
import functools
import os
import shutil
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from lab.console import Parser
from lab.data.glue_files import Examples, Source, file_sha256, find_sources, read_examples
from lab.data.indexed_rows import numbered, write_rows
from lab.data.preparation import (
    add_dest,
    check_accepted,
    prepare_once,
    read_manifest,
    write_manifest,
)
from lab.data.processes import worker_count
from lab.data.tokenization import DICTIONARY, TextEncoder, encode_all, tokenizer_fingerprint
from lab.errors import UserError
from lab.glue_tasks import TASKS, GlueTask, glue_task
from lab.outputs import check_output_folder

if TYPE_CHECKING:
    import torch
    from fairseq.data import Dictionary

EPILOG = f"""
tasks: {", ".join(TASKS)}

A split with another number of examples than published is an error. With --partial any number will
do, a missing dev split too, and samples are taken where train.tsv is missing (train.sample.json and
dev.sample.json, else train.kshot.tsv and dev.kshot.tsv, all of them parts of the published train
file); preparation.json then says "partial": true, and no result from it may be put beside a published
one. Labels are classes in the order of label/dict.txt; STS-B's scores are divided by 5. A task that
is ready is left as it is, so after an interruption the same command continues.
"""


def main() -> None:
    arguments = parse_arguments()
    check_output_folder(arguments.dest, "--dest")
    tasks = find_tasks(arguments.folder, arguments.task)
    sources = {
        task.name: find_sources(arguments.folder / task.name, task, arguments.partial) for task in tasks
    }
    arguments.tokenizer_from = Path(os.path.abspath(arguments.tokenizer_from))
    encoder = open_encoder(arguments.tokenizer_from)
    for task in tasks:
        dest, found = arguments.dest / task.name, sources[task.name]
        manifest = prepare_once(dest, functools.partial(prepare, arguments, task, found, encoder))
        check_same(manifest, arguments.tokenizer_from, dest, arguments.partial)
        check_sources(manifest, found, dest)
        print(f"{dest} is ready: {describe(manifest)}", flush=True)


def parse_arguments() -> argparse.Namespace:
    parser = Parser("data-prep/glue.sh", __doc__, epilog=EPILOG)
    parser.add_argument("folder", type=Path, metavar="FOLDER", help="the original files, a folder a task")
    parser.add_argument(
        "--tokenizer-from",
        required=True,
        type=Path,
        metavar="PREPARED",
        help="the folder made by roberta.sh that the model was pre-trained on",
    )
    add_dest(parser)
    parser.add_argument(
        "--task",
        action="append",
        metavar="TASK",
        help="only this one; may be repeated (default: all tasks that FOLDER holds)",
    )
    parser.add_argument(
        "--partial", action="store_true", help="accept parts and samples of the published files"
    )
    return parser.parse_args()


def find_tasks(folder: Path, names: list[str] | None) -> list[GlueTask]:
    """The tasks asked for, or all that `folder` holds; says which it does not."""
    if not folder.is_dir():
        raise UserError(f"{folder} is no folder; name the one with CoLA, MRPC and so on")
    tasks = [glue_task(name) for name in names or TASKS]
    missing = [task.name for task in tasks if not (folder / task.name).is_dir()]
    if missing and (names or len(missing) == len(tasks)):
        if not names:
            raise UserError(
                f"{folder} holds none of GLUE's tasks; name the folder that holds {', '.join(missing)}"
            )
        raise UserError(f"{folder} has no folder {missing[0]}; name the folder that holds it")
    if missing:
        print(f"{folder} has no {', '.join(missing)}.")
    return [task for task in tasks if task.name not in missing]


def open_encoder(folder: Path) -> TextEncoder:
    """The tokeniser of the pre-training's folder."""
    if read_manifest(folder) is None:
        raise UserError(f"--tokenizer-from: {folder} holds no prepared corpus")
    return TextEncoder.from_folder(folder)


def check_same(manifest: dict, tokenizer_from: Path, dest: Path, partial: bool) -> None:
    """Refuse to pass a folder prepared otherwise for what was asked."""
    if manifest.get("tokenizer_fingerprint") != tokenizer_fingerprint(tokenizer_from):
        raise UserError(
            f"{dest} was prepared with another tokeniser than that of {tokenizer_from}; name another "
            "--dest or move it away"
        )
    check_accepted(dest, "parts of the published files", partial or not manifest["partial"], "--partial")


def check_sources(manifest: dict, sources: dict[str, Source], dest: Path) -> None:
    """Refuse to pass a folder made from other files for what these would be."""
    for split, source in sources.items():
        made_from = manifest["splits"].get(split, {})
        if made_from.get("sha256") != file_sha256(source.path):
            name = made_from.get("file", "no file at all")
            raise UserError(
                f"{dest} was prepared with another {split} split ({name}) than {source.path}; name another "
                "--dest or move it away"
            )


def describe(manifest: dict) -> str:
    """One line, for people."""
    part = " (PARTIAL)" if manifest["partial"] else ""
    sizes = [f"{split} {entry['examples']:,}" for split, entry in manifest["splits"].items()]
    return f"{manifest['tokenizer']}, {', '.join(sizes)}{part}"


def prepare(
    arguments: argparse.Namespace,
    task: GlueTask,
    sources: dict[str, Source],
    encoder: TextEncoder,
    folder: Path,
) -> dict:
    """Read and check all splits of a task, then encode and binarise them."""
    splits = {}
    for split in task.files:
        if split in sources:
            splits[split] = read_examples(sources[split], task, split)
            check_size(splits[split], task, split, arguments.partial)
    from fairseq.data import Dictionary

    for name in (DICTIONARY, *encoder.files):
        shutil.copyfile(arguments.tokenizer_from / name, folder / name)
    dictionary = Dictionary.load(str(folder / DICTIONARY))
    entries = {}
    for split, examples in splits.items():
        print(f"{task.name}: {split}, {len(examples.sentences):,} examples ...", flush=True)
        longest = write_inputs(folder, split, examples, encoder, dictionary)
        entries[split] = split_entry(task, examples, longest)
    write_labels(folder, task, splits)
    manifest = {
        "corpus": f"GLUE {task.name}",
        "task": task.name,
        "tokenizer": encoder.name,
        "tokenizer_fingerprint": tokenizer_fingerprint(folder),
        "vocabulary": len(dictionary),
        "labels": list(task.labels),
        "metrics": list(task.metrics),
        "partial": is_partial(task, splits),
        "splits": entries,
    }
    return write_manifest(folder, manifest)


def check_size(examples: Examples, task: GlueTask, split: str, partial: bool) -> None:
    """Refuse a split of another size than published, unless that is accepted; an empty one always."""
    size, published = len(examples.sentences), task.sizes[split]
    if not size or (size not in published and not partial):
        expected = " or ".join(f"{number:,}" for number in published)
        raise UserError(
            f"{examples.source} has {size:,} {split} examples of {task.name} instead of {expected}; get "
            "the whole file" + (", or accept it with --partial" if size else "")
        )


def is_partial(task: GlueTask, splits: dict[str, Examples]) -> bool:
    """Whether train or a dev split is missing or not as large as published."""
    return any(
        split not in splits or len(splits[split].sentences) not in task.sizes[split]
        for split in ("train", *task.dev_splits)
    )


def split_entry(task: GlueTask, examples: Examples, longest: int) -> dict:
    """What the manifest says of a split."""
    entry = {
        "examples": len(examples.sentences),
        "longest": longest,
        "broken_rows": examples.broken_rows,
        "empty_sentences": examples.empty_sentences,
        "file": examples.source.name,
        "sha256": examples.sha256,
    }
    if examples.labels is not None and not task.is_regression:
        counts = Counter(examples.labels)
        entry["labels"] = {label: counts[label] for label in task.labels}
    return entry


def write_inputs(
    folder: Path, split: str, examples: Examples, encoder: TextEncoder, dictionary: "Dictionary"
) -> int:
    """Write input0 and input1; returns the tokens of the longest `<s> a </s> </s> b </s>`."""
    lengths = [0] * len(examples.sentences)
    for number, sentences in enumerate(zip(*examples.sentences, strict=True)):
        place = folder / f"input{number}"
        place.mkdir(exist_ok=True)
        texts = encode_all(encoder, sentences, worker_count(sum(map(len, sentences))))
        here = write_rows(place / split, known(numbered(texts, dictionary), dictionary), len(dictionary))
        lengths = [before + 1 + length for before, length in zip(lengths, here, strict=True)]
        shutil.copyfile(folder / DICTIONARY, place / DICTIONARY)
    return max(lengths)


def known(rows: "Iterable[torch.Tensor]", dictionary: "Dictionary") -> "Iterator[torch.Tensor]":
    """The rows; UserError for one with the number of an unknown token."""
    for row in rows:
        if (row == dictionary.unk()).any():
            raise UserError("the tokeniser has a token that its dictionary lacks; prepare both again")
        yield row


def write_labels(folder: Path, task: GlueTask, splits: dict[str, Examples]) -> None:
    """Write the labels of all splits that have some: rows of a label and `</s>`, or scores as text."""
    from fairseq.data import Dictionary

    place = folder / "label"
    place.mkdir()
    labelled = {split: examples.labels for split, examples in splits.items() if examples.labels is not None}
    if task.is_regression:
        for split, labels in labelled.items():
            scores = (f"{float(label) / task.highest_score}\n" for label in labels)
            (place / f"{split}.label").write_text("".join(scores))
        return
    counts = Counter(labelled["train"])
    lines = (f"{label} {counts[label]}\n" for label in task.labels)
    (place / DICTIONARY).write_text("".join(lines))
    dictionary = Dictionary.load(str(place / DICTIONARY))
    for split, labels in labelled.items():
        write_rows(place / split, numbered(labels, dictionary), len(dictionary))
