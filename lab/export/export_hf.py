"""The command `export`: a folder that `transformers` loads without fairseq and without this project."""

import json
import os
from argparse import Namespace
from pathlib import Path

from lab.errors import UserError
from lab.export.exported import WEIGHTS, load_source, model_files, tokenizer_files
from lab.export.model_card import model_card, read_run
from lab.files import (
    MARK,
    begin,
    check_begin,
    check_output_folder,
    fingerprint,
    sha256_of,
    shown_path,
    write_atomically,
)
from lab.run.checkpoint import check_reads_text, read_checkpoint, whole_checkpoint

COMMAND = "export_hf.sh"
CARD = "README.md"


def export(checkpoint: Path, out: Path, head: str | None, data: Path | None = None) -> str:
    """Write the folder `out`; returns the kind of the model. UserError if the model cannot be exported.

    `data` has the dictionary and the tokeniser if they are not where `vocabulary_folder` looks for them. A
    head that is left out is named on stdout.
    """
    check_output_folder(out, "DIR")
    checkpoint = whole_checkpoint(checkpoint)
    mark = fingerprint([sha256_of(checkpoint), head])
    content = f"the export of {shown_path(checkpoint)}" + (f" with the head {head}" if head else "")
    check_begin(out, COMMAND, mark, content, "DIR")
    check_reads_text(checkpoint, "exported")
    source = load_source(checkpoint, data)
    files = model_files(source, head)
    files |= tokenizer_files(source.folder, source.dictionary, source.kind != "CausalLM")
    kind = source.kind if head is None else "SequenceClassification"
    run = read_run(read_checkpoint(checkpoint))
    files[CARD] = model_card(out.name, kind, json.loads(files["config.json"]), run)
    check_unchanged(out / WEIGHTS, files[WEIGHTS])
    begin(out, COMMAND, mark, content, "DIR")
    if os.path.lexists(out / CARD) and MARK.encode() not in (out / CARD).read_bytes():
        del files[CARD]
        print(f"kept: {CARD}, which is yours: it lacks the comment that generated cards have")
    for name, written in files.items():
        write_atomically(out / name, written)
    if head is None and (heads := getattr(source.model, "classification_heads", None)):
        name = next(iter(heads))
        print(f"left out: the classification head {name}; export it with --head {name}")
    return kind


def check_unchanged(weights: Path, exported: bytes) -> None:
    """UserError for weights that somebody has trained since they were exported."""
    if weights.exists() and weights.read_bytes() != exported:
        raise UserError(
            f"{shown_path(weights)} has changed since it was exported; move it away, or choose another DIR"
        )


def main(options: Namespace) -> None:
    """Export, and say how to load it."""
    kind = export(options.checkpoint.absolute(), options.out.absolute(), options.head, options.data)
    out = shown_path(options.out)
    print(
        f"written to {out}; load it with\n"
        f'  AutoModelFor{kind}.from_pretrained("{out}", trust_remote_code=True)\n'
        f'  AutoTokenizer.from_pretrained("{out}", trust_remote_code=True)'
    )
