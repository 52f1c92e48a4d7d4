"""What differs between the commands that train: which data they read, and what they keep of a run."""

from argparse import Namespace
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipeline.data.prepared import open_prepared
from pipeline.training import glue_run, image_run, lra_run
from pipeline.training.checkpoint import read_checkpoint
from pipeline.training.encoder_checkpoint import read_encoder
from pipeline.training.recipe import option


@dataclass(frozen=True)
class Kind:
    """How models of one of fairseq's tasks are trained; the defaults are those of models of text.

    `command` is the script, `evaluation` the one that tests a checkpoint on data. `open_data` opens a
    prepared folder and checks these splits; what it returns has the `folder`. `check_data` refuses data that
    do not go with the arguments of fairseq-train as read, `check_start` a checkpoint that training cannot
    start from on these data; `model_flags` are those that build its model. `record` keeps in the folder of a
    run what is not in its checkpoints, for an experiment's name, the data and the arguments of fairseq-train.
    `run_name` is the folder of a run in runs/, for the experiment's name and the user's flags. The functions
    raise UserError.
    """

    command: str
    evaluation: str
    open_data: Callable[[Path, tuple[str, ...]], Any] = open_prepared
    check_data: Callable[[Namespace, Any], None] = lambda read, data: None
    check_start: Callable[[Path, Any], object] = lambda path, data: read_checkpoint(path)
    model_flags: Callable[[Path], list[str]] = lambda path: []
    record: Callable[[Path, str, Any, Sequence[str]], None] = lambda save_dir, name, data, arguments: None
    run_name: Callable[[str, Sequence[str]], str] = lambda name, flags: name


def _name_with_plan(name: str, flags: Sequence[str]) -> str:
    plan = option(flags, "--encoder-attention") or option(flags, "--decoder-attention")
    return f"{name}/{plan or 'default'}"


# By the task of the YAML.
KINDS = {
    "language_modeling": Kind("train_lm.sh", "eval_ppl.sh"),
    "carried_language_modeling": Kind("train_lm.sh", "eval_ppl.sh"),
    "masked_lm": Kind(
        "pretrain_roberta.sh", "eval_mlm.sh", check_start=lambda path, data: read_encoder(path)
    ),
    "sentence_prediction": Kind(
        "finetune_glue.sh",
        "predict_glue.sh",
        glue_run.open_data,
        check_start=glue_run.check_start,
        model_flags=glue_run.model_flags,
        record=glue_run.record,
    ),
    "lra": Kind(
        "train_lra.sh",
        "evaluate_lra.sh",
        lra_run.open_data,
        lra_run.check_data,
        lra_run.check_start,
        record=lra_run.record,
        run_name=_name_with_plan,
    ),
    image_run.PIXELS: Kind(
        "train_images.sh",
        "eval_images.sh",
        image_run.open_data,
        check_start=image_run.check_start,
        run_name=_name_with_plan,
    ),
    image_run.CLASSIFICATION: Kind(
        "train_vit.sh",
        "eval_images.sh",
        image_run.open_labelled,
        check_start=image_run.check_classifier_start,
        run_name=_name_with_plan,
    ),
}
