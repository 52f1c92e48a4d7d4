"""The options of the commands that turn checkpoints into other files: average, export, import."""

from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path

from lab.console import Parser, count, parse_before_flags

AVERAGE = """\
Average the weights of checkpoints, as fairseq's own script does.

Name the checkpoints one by one, or take the last ones of a run:

    scripts/lab.sh average --inputs A/checkpoint_1_9.pt B/checkpoint_1_9.pt --output average.pt
    scripts/lab.sh average --inputs RUN --num-update-checkpoints 5 --output RUN/average.pt

The average takes the settings of the newest checkpoint. You can evaluate, export and fine-tune it, but not
resume from it, because it has no optimizer state. The average, its evaluations and its model card name the
checkpoints that went into it.
"""
OF_A_FOLDER = {
    "--num-update-checkpoints": "checkpoint_EPOCH_UPDATE.pt",
    "--num-epoch-checkpoints": "checkpointEPOCH.pt",
}
"""The options that take the last checkpoints of a folder, and the names of these checkpoints."""
EXPORT = """\
Export a model for `transformers`: weights, configuration, tokeniser, model card, plain PyTorch.

DIR then loads anywhere with torch and transformers, without fairseq and without this project:

    AutoModelForCausalLM.from_pretrained(DIR, trust_remote_code=True)      # a language model
    AutoModelForMaskedLM.from_pretrained(DIR, trust_remote_code=True)      # an encoder

Models with the attentions softmax, elu, norm, diag, lln, lln_diag, retention, lightning and gated can be
exported.
"""
IMPORT = """\
Turn RoBERTa weights of transformers into a checkpoint from which this project's encoders start.

    scripts/lab.sh import ~/roberta-base data/wikitext-103-roberta imported/lln --arch roberta_lln
    scripts/finetune_glue.sh imported/lln/imported.pt --data data/glue
    scripts/pretrain_roberta.sh CONFIG DATA --finetune-from-model imported/lln/imported.pt

HF is a folder with config.json and model.safetensors (or pytorch_model.bin, read by torch's safe loader).
The encoder takes every weight that matches its own in name and shape. roberta_softmax takes all of them
and computes the logits of transformers. Other encoders initialise the rest at random, which the command
lists. DIR/imported.pt is the checkpoint; the dictionary and the tokeniser lie beside it.
"""


def average(words: Sequence[str]) -> Namespace:
    """The options of `average`; UserError if some exclude each other."""
    parser = Parser("scripts/lab.sh average", AVERAGE)
    parser.add_argument(
        "--inputs",
        nargs="+",
        required=True,
        metavar="CHECKPOINT",
        help="two or more checkpoints, or the folder of a run",
    )
    parser.add_argument("--output", type=Path, required=True, metavar="FILE", help="the averaged checkpoint")
    last = parser.add_mutually_exclusive_group()
    for option, names in OF_A_FOLDER.items():
        last.add_argument(option, type=count, metavar="N", help=f"the last N of the folder's {names}")
    parser.add_argument(
        "--checkpoint-upper-bound",
        type=count,
        metavar="M",
        help="with the folder of a run: ignore the checkpoints after this update or epoch",
    )
    options = parser.parse_args(words)
    if options.checkpoint_upper_bound and not (
        options.num_update_checkpoints or options.num_epoch_checkpoints
    ):
        parser.error("--checkpoint-upper-bound goes with --num-update-checkpoints or --num-epoch-checkpoints")
    return options


def export(words: Sequence[str]) -> Namespace:
    """The options of `export`."""
    parser = Parser("scripts/lab.sh export", EXPORT)
    parser.add_argument(
        "checkpoint",
        type=Path,
        metavar="CHECKPOINT",
        help="written by fairseq-train, train_lm.sh, pretrain_roberta.sh or finetune_glue.sh",
    )
    parser.add_argument(
        "out", type=Path, metavar="DIR", help="a new folder, or an earlier export of the same checkpoint"
    )
    parser.add_argument(
        "--head",
        metavar="NAME",
        help="export an encoder with this classification head instead of the masked-LM head "
        "(AutoModelForSequenceClassification)",
    )
    parser.add_argument(
        "--data",
        type=Path,
        metavar="FOLDER",
        help="folder with dict.txt and the tokeniser (default: the checkpoint's, else its training data)",
    )
    return parser.parse_args(words)


def import_hf(words: Sequence[str]) -> Namespace:
    """The options of `import`; `flags` are the flags of the architecture."""
    options = Parser("scripts/lab.sh import", add_help=False)
    options.add_argument(
        "--arch", default="roberta_softmax", metavar="ARCH", help="the encoder (default: %(default)s)"
    )
    options.add_argument(
        "--embeddings-only", action="store_true", help="take the embeddings of words and positions only"
    )
    options.add_argument(
        "--seed", type=int, default=1, help="random seed of the initial weights (default: %(default)s)"
    )
    usage = "scripts/lab.sh import HF DATA DIR [options] [flags of ARCH ...]"
    parser = Parser("scripts/lab.sh import", IMPORT, parents=[options], usage=usage)
    parser.add_argument("source", type=Path, metavar="HF", help="folder with config.json and the weights")
    parser.add_argument(
        "data",
        type=Path,
        metavar="DATA",
        help="folder made by data-prep/roberta.sh with the dictionary of the weights (roberta-base: gpt2)",
    )
    parser.add_argument(
        "out", type=Path, metavar="DIR", help="a new folder, or an earlier import of the same weights"
    )
    return parse_before_flags(parser, options, words)
