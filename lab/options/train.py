"""The options of the commands that train: each kind of model, and fine-tuning on GLUE."""

import argparse
from argparse import Namespace
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from lab.console import Parser, count, parse_before_flags, positive, split_flags
from lab.glue_tasks import TASKS
from lab.run.launch import LAUNCHERS
from lab.run.recipe import OF_TRAINING, check_owned, compose_experiment

HOW = """\
The command turns the YAML into a plain fairseq-train command and prints it; flags of fairseq-train at the end
override the YAML. --update-freq keeps the YAML's effective batch on any number of GPUs. Run the same command
again to resume from the newest whole checkpoint; a finished run stays as it is.
"""
ROBERTA = "It copies the tokeniser next to the checkpoints, for scripts/finetune_glue.sh.\n"
LRA = """
The fairseq-train flag --encoder-attention PLAN chooses the attention: a mechanism for every layer, such as
lln_diag, or a layer plan, such as diag,norm (default: softmax in lra_skyformer, diag,norm in
lra_state_space). checkpoint_best.pt is the best on valid; run.json records preset, attention, updates, seed
and the origin of the data.
"""
IMAGES = """
The fairseq-train flag --decoder-attention PLAN replaces the YAML's attention. Losses in the log are bits per
dimension; checkpoint_best.pt is the best on valid.
"""
VIT = """
The fairseq-train flag --encoder-attention PLAN replaces the YAML's attention. The log has loss in bits and
accuracy in percent; checkpoint_best.pt has the best accuracy on valid.
"""
FINETUNE = """\
Fine-tune an encoder on GLUE: every task, learning rate and seed, and a table next to the papers'.

The best learning rate of each task has the best mean over the seeds on the dev set, as in the papers. The
command runs the study configs/studies/glue.yaml from this checkpoint: it writes a record for each run and
README.md with the table into --out and keeps the weights of each task's best run. After an interruption,
even a kill, run it again: it skips finished runs and resumes the others from their last epoch.
"""


@dataclass(frozen=True)
class TrainingHelp:
    """The help of a kind.

    `name` is the command, `about` its first line, `example` a YAML, `data` the command that prepares its
    data, `runs` the folder of its runs, and `more` a paragraph that only this kind has.
    """

    name: str
    about: str
    example: str
    data: str
    runs: str = "runs/<experiment>/<configuration>"
    more: str = ""


COMMANDS = {
    "lm": TrainingHelp(
        "scripts/train_lm.sh",
        "Train a language model as a YAML of configs/ describes it.",
        "configs/wikitext103/transnormer_t1.yaml",
        "data-prep/",
    ),
    "roberta": TrainingHelp(
        "scripts/pretrain_roberta.sh",
        "Pre-train a RoBERTa encoder as a YAML of configs/ describes it.",
        "configs/roberta/wikitext103_lln_diag.yaml",
        "data-prep/roberta.sh",
        more=ROBERTA,
    ),
    "lra": TrainingHelp(
        "scripts/lab.sh train lra",
        "Train on a task of Long Range Arena as a YAML of configs/lra_skyformer or lra_state_space says.",
        "configs/lra_skyformer/listops.yaml",
        "data-prep/lra.sh",
        "runs/<preset>/<task>/<plan>",
        LRA,
    ),
    "images": TrainingHelp(
        "scripts/lab.sh train images",
        "Train a model of images byte by byte as a YAML of configs/images describes it.",
        "configs/images/digits.yaml",
        "data-prep/images.sh",
        "runs/images/<preset>/<plan>",
        IMAGES,
    ),
    "vit": TrainingHelp(
        "scripts/lab.sh train vit",
        "Train a Vision Transformer as a YAML of configs/vit describes it.",
        "configs/vit/digits.yaml",
        "data-prep/images.sh",
        "runs/vit/<preset>/<plan>",
        VIT,
    ),
}


def add_machines(options: Parser) -> None:
    """The options that say where to train, which `machines_of` reads."""
    options.add_argument(
        "--launcher",
        choices=tuple(LAUNCHERS),
        help="what starts the processes: this command (spawn), torchrun, or srun (slurm); default: the "
        "launcher that started this command, else spawn (docs/cluster.md)",
    )
    options.add_argument(
        "--gpus",
        type=int,
        metavar="N",
        help="GPUs of this machine to use (default: all; 0: the CPU)",
    )
    options.add_argument(
        "--cpu-processes",
        type=count,
        default=1,
        metavar="N",
        help="with --gpus 0: processes of this machine that share each batch (default: 1)",
    )
    options.add_argument(
        "--nodes",
        type=int,
        default=1,
        metavar="M",
        help="number of machines; start the same command on each, with its own --node-rank",
    )
    options.add_argument("--node-rank", type=int, default=0, metavar="R", help="this machine, 0 to M-1")
    options.add_argument("--master", metavar="ADDR", help="address of machine 0, its port 29500 unless given")


def add_language_model(options: Parser) -> None:
    """The options that only language models have."""
    options.add_argument(
        "--carry-state",
        action="store_true",
        help="train on consecutive text: each batch starts with the states at the end of the last one",
    )
    options.add_argument(
        "--plan",
        action="store_true",
        help="train 20 updates, print the cost of the whole run (tokens, hours, memory) beside the "
        "paper's row, and stop; with --dry-run, print what is known without training",
    )


def training_parser(kind: str) -> tuple[Parser, Parser]:
    """The parser of a kind, and a parser of its options alone."""
    command = COMMANDS[kind]
    options = Parser(command.name, add_help=False)
    add_machines(options)
    options.add_argument(
        "--save-dir",
        type=Path,
        metavar="DIR",
        help=f"folder of the run (default: {command.runs} in the project)",
    )
    options.add_argument(
        "--fresh",
        action="store_true",
        help="start at update 1; checkpoints, log, curves and dictionary in DIR move to DIR/earlier-N",
    )
    options.add_argument(
        "--allow-changed",
        nargs="+",
        default=[],
        metavar="NAME",
        help="settings of model, task or data that may differ from those of DIR's checkpoints",
    )
    options.add_argument(
        "--fast",
        action="store_true",
        help="use a fused Adam; on GPUs also bf16 and, for language models and RoBERTa encoders, a compiled "
        "model (your own flags take precedence)",
    )
    options.add_argument(
        "--dry-run", action="store_true", help="print the fairseq-train command and stop; needs no GPU"
    )
    if kind == "lm":
        add_language_model(options)
    usage = f"{command.name} CONFIG [DATA] [options] [fairseq-train flags ...]"
    text = f"{command.about}\n\n{HOW}{command.more}"
    parser = Parser(command.name, text, parents=[options], usage=usage)
    parser.add_argument("config", type=Path, metavar="CONFIG", help=f"such as {command.example}")
    parser.add_argument(
        "data",
        type=Path,
        nargs="?",
        metavar="DATA",
        help=f"a folder made by {command.data} (default: the one the YAML names)",
    )
    return parser, options


def training(words: Sequence[str], kind: str) -> Namespace:
    """The options of a kind, its `experiment`, and the `flags` of fairseq-train.

    UserError for a YAML that cannot be read.
    """
    given = parse_before_flags(*training_parser(kind), words)
    if getattr(given, "carry_state", False):
        given.flags = ["--task", "carried_language_modeling", *given.flags]
    given.command = COMMANDS[kind].name
    check_owned(given.command, given.flags, OF_TRAINING)
    given.experiment = compose_experiment(given.config)
    return given


def add_grid(parser: Parser) -> None:
    """The options that say which runs fine-tuning has, and how many at a time."""
    parser.add_argument(
        "--lr",
        "--learning-rates",
        dest="learning_rates",
        type=numbers,
        metavar="A,B,...",
        help="learning rates instead of those of configs/studies/glue.yaml",
    )
    parser.add_argument(
        "--seeds",
        type=count,
        metavar="N",
        help="number of seeds, counted up from 1 (default: that of configs/studies/glue.yaml)",
    )
    parser.add_argument(
        "--max-update",
        type=count,
        metavar="N",
        help="stop each run after N updates instead of the epochs of configs/glue/finetune.yaml",
    )
    parser.add_argument(
        "--jobs",
        type=count,
        metavar="N",
        help="runs in parallel (default: one per GPU; 1 without a GPU)",
    )


def finetuning(words: Sequence[str]) -> Namespace:
    """The options of `finetune`; `flags` are the flags for fairseq-train."""
    words, flags = split_flags(words)
    usage = "scripts/finetune_glue.sh CHECKPOINT [options] [-- fairseq-train flags ...]"
    parser = Parser("scripts/finetune_glue.sh", FINETUNE, usage=usage)
    parser.add_argument(
        "checkpoint",
        type=Path,
        metavar="CHECKPOINT",
        help="written by scripts/pretrain_roberta.sh, or fairseq's RoBERTa",
    )
    parser.add_argument(
        "--task",
        default="all",
        metavar="TASKS",
        help=f"some of {', '.join(TASKS)}, separated by commas, or all that are prepared (default: all)",
    )
    parser.add_argument(
        "--data",
        type=Path,
        metavar="DIR",
        help="made by data-prep/glue.sh with the encoder's tokeniser (default: data/glue)",
    )
    parser.add_argument(
        "--out",
        type=Path,
        metavar="DIR",
        help="folder of runs and results (default: glue/<checkpoint> beside the checkpoint)",
    )
    add_grid(parser)
    parser.add_argument("--dry-run", action="store_true", help="print the fairseq-train commands, and stop")
    return parser.parse_args(words, Namespace(flags=flags))


def numbers(text: str) -> list[float]:
    """An option's numbers above 0, separated by commas, each once."""
    try:
        return list(dict.fromkeys(map(positive, text.split(","))))
    except argparse.ArgumentTypeError:
        raise argparse.ArgumentTypeError(
            f"{text!r} is not one or several numbers above 0, with commas between"
        ) from None
