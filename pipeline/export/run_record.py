"""What a run has recorded of its data and its perplexity, for the card of an exported model."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipeline.data.identity import CORPUS, TEXT
from pipeline.files import PREPARED, read_json
from pipeline.training.checkpoint import load_safely, sections, updates
from pipeline.training.same_settings import DATA

PERPLEXITY_TASKS = ("language_modeling", "carried_language_modeling", "masked_lm")
SPLITS = ("valid", "test")
FROM_TRAINING = "the last validation before the checkpoint was saved"


@dataclass(frozen=True)
class Evaluation:
    """Perplexities of a `split` by name, and which `source` has measured them."""

    split: str
    perplexities: dict[str, float]
    source: str


@dataclass(frozen=True)
class RunRecord:
    """`data` is part of preparation.json, empty if unknown; `commit` is of the training, None if unknown."""

    architecture: str
    updates: int
    data: dict[str, Any]
    evaluations: list[Evaluation]
    commit: str | None


def read_run(checkpoint: Path) -> RunRecord:
    """All that is on file; UserError for a file that cannot be read.

    The figures come from the records of eval_ppl.sh and eval_mlm.sh, of a study or of the quickstart, else
    from the validation during training. A record of another number of updates is passed over.
    """
    state, configuration = load_safely(checkpoint)
    model, task = sections(configuration)
    made = updates(state)
    study = _study_record(checkpoint.parent, made)
    evaluations = _evaluated(checkpoint, made) or _of_study(study) or _of_training(state, task)
    return RunRecord(
        architecture=str(model.get("_name") or model.get("arch")),
        updates=made,
        data=_data(checkpoint.parent) or study.get("data") or {},
        evaluations=evaluations,
        commit=study.get("environment", {}).get("commit"),
    )


def _read(path: Path) -> dict[str, Any]:
    """The JSON object in `path`; empty if there is no such file, or another value in it."""
    record = read_json(path) if path.is_file() else {}
    return record if isinstance(record, dict) else {}


def _data(folder: Path) -> dict[str, Any]:
    """The manifest of the prepared folder that `folder` was trained on, while that exists."""
    named = _read(folder / DATA).get("data")
    manifest = _read(Path(named) / PREPARED) if named else {}
    return {key: manifest[key] for key in TEXT if key in manifest}


def _evaluated(checkpoint: Path, made: int) -> list[Evaluation]:
    """The results beside the checkpoint: those of evaluation commands, else those of the quickstart."""
    quickstart = _read(checkpoint.parent / "result.json")
    found = []
    for split in SPLITS:
        own = _read(checkpoint.with_suffix(f".{split}.json"))
        result, source = (own, _command(own)) if own else (quickstart.get(split, {}), "scripts/quickstart.sh")
        if result.get("updates") == made and not result.get("model_overrides"):
            found += _evaluation(
                split, result.get("perplexity_per_token"), result.get("perplexity_per_word"), source
            )
    return found


def _command(result: dict[str, Any]) -> str:
    if "masked_tokens" in result:
        return "scripts/eval_mlm.sh"
    context = f" --context-window {result['context_window']}" if result.get("context_window") else ""
    return f"scripts/eval_ppl.sh{context} --tokens-per-sample {result.get('tokens_per_sample')}"


def _study_record(folder: Path, made: int) -> dict[str, Any]:
    """That of the cell of a study that has trained in `folder`; empty if it measured other weights."""
    record = _read(folder.with_name(f"{folder.name}.json"))
    found = record.get("found")
    return record if isinstance(found, dict) and found.get("best_update") == made else {}


def _of_study(record: dict[str, Any]) -> list[Evaluation]:
    """The figures of a cell of scripts/study.sh."""
    evaluations = []
    for split in SPLITS if record else ():
        found = record["found"].get(split, {})
        source = f"scripts/study.sh {record['study']}"
        evaluations += _evaluation(split, found.get("perplexity"), found.get("perplexity_per_word"), source)
    return evaluations


def _of_training(state: Mapping[str, Any], task: Mapping[str, Any]) -> list[Evaluation]:
    """The loss of the last validation; for a classifier nothing, since its score has no fixed meaning."""
    bits = (state.get("extra_state") or {}).get("val_loss")
    if bits is None or task.get("_name") not in PERPLEXITY_TASKS:
        return []
    return _evaluation("valid", 2.0**bits, None, FROM_TRAINING)


def _evaluation(split: str, per_token: float | None, per_word: float | None, source: str) -> list[Evaluation]:
    """One evaluation, or none where neither perplexity is a finite number."""
    metrics = {"perplexity per token": per_token, "perplexity per word": per_word}
    finite = {name: value for name, value in metrics.items() if value is not None and math.isfinite(value)}
    return [Evaluation(split, finite, source)] if finite else []


def corpus_of(record: RunRecord) -> str:
    """The name of the training data."""
    return str(record.data.get(CORPUS) or "unknown data")
