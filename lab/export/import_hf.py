"""Turn RoBERTa weights of transformers into a checkpoint from which this project's encoders start.

    scripts/lab.sh import ~/roberta-base data/wikitext-103-roberta imported/lln --arch roberta_lln
    scripts/finetune_glue.sh imported/lln/imported.pt --data data/glue
    scripts/pretrain_roberta.sh CONFIG DATA --finetune-from-model imported/lln/imported.pt

HF is a folder with config.json and model.safetensors (or pytorch_model.bin, read by torch's safe loader).
All weights are taken whose name and shape the encoder has: every one with roberta_softmax, which then
computes the logits of transformers; what else there is starts at random, and the command says what.
DIR/imported.pt is the checkpoint; the dictionary and the tokeniser lie beside it.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from lab.console import Parser, parse_before_flags
from lab.export.hf_roberta import import_hf
from lab.files import shown_path


def parse(words: Sequence[str]) -> tuple[argparse.Namespace, list[str]]:
    """Our own options, and the flags of the architecture."""
    options = Parser("scripts/lab.sh import", add_help=False)
    options.add_argument(
        "--arch", default="roberta_softmax", metavar="ARCH", help="the encoder (default: %(default)s)"
    )
    options.add_argument(
        "--embeddings-only", action="store_true", help="take only the embeddings, of words and positions"
    )
    options.add_argument(
        "--seed", type=int, default=1, help="of what starts at random (default: %(default)s)"
    )
    usage = "scripts/lab.sh import HF DATA DIR [options] [flags of ARCH ...]"
    parser = Parser("scripts/lab.sh import", __doc__, parents=[options], usage=usage)
    parser.add_argument("source", type=Path, metavar="HF", help="folder with config.json and the weights")
    parser.add_argument(
        "data",
        type=Path,
        metavar="DATA",
        help="folder of data-prep/roberta.sh with the dictionary of the weights (roberta-base's is gpt2)",
    )
    parser.add_argument("out", type=Path, metavar="DIR", help="a new folder, or one imported before")
    return parse_before_flags(parser, options, words)


def main() -> None:
    """Import, and say where it went."""
    options, flags = parse(sys.argv[1:])

    options.out = options.out.absolute()
    path = import_hf(options, flags)
    print(f"written to {shown_path(path)}")
