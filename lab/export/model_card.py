"""The model card of an exported model, with the data and the perplexity that the run has recorded.

It is README.md with the metadata that model hubs read.
"""

import math
import shlex
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from conventions import RUN_DATA
from conventions.content import manifest_of
from lab.data.bundled_corpus import CORPUS as BUNDLED
from lab.data.prepared import CORPUS, TEXT
from lab.data.published import CORPORA
from lab.files import MARK, read_json
from lab.provenance import commit
from lab.run.checkpoint import Checkpoint, own_name, result_beside
from lab.store import stored

PERPLEXITY_TASKS = ("language_modeling", "carried_language_modeling", "masked_lm")
SPLITS = ("valid", "test")
FROM_TRAINING = "the last validation before the checkpoint was saved"
TASKS = {
    "CausalLM": "text-generation",
    "MaskedLM": "fill-mask",
    "SequenceClassification": "text-classification",
}
LICENCES = {
    **{name: corpus.licence for name, corpus in CORPORA.items()},
    BUNDLED: "PSF-2.0 (Python Software Foundation)",
}
CARD = """\
# {name}

A {kind} with linear-attention layers (`{architecture}`), trained with fairseq for
{updates:,} updates and exported to `transformers`. Attention of the layers: {plan}.{averaged}

```python
from transformers import AutoModelFor{head}, AutoTokenizer

model = AutoModelFor{head}.from_pretrained("{name}", trust_remote_code=True)
tokenizer = AutoTokenizer.from_pretrained("{name}", trust_remote_code=True)
```

## Data

{data}

## Evaluation

{evaluation}

## Limits

{limits}

## Licence

The modelling code is under the MIT licence. The training data: {licence}. Whoever publishes the weights
chooses their licence: set `license` above.

## Provenance

Trained with commit {trained}; exported with commit {exported}.
"""


@dataclass(frozen=True)
class RecordedPerplexity:
    """Perplexities of a `split` by name, and which `source` has measured them."""

    split: str
    perplexities: dict[str, float]
    source: str


@dataclass(frozen=True)
class RunRecord:
    """`data` is part of preparation.json, empty if unknown; `commit` is of the training, None if unknown.

    `averaged` are the checkpoints whose average the weights are.
    """

    architecture: str
    updates: int
    data: dict[str, Any]
    evaluations: list[RecordedPerplexity]
    commit: str | None
    averaged: Sequence[str] = ()


def read_run(checkpoint: Checkpoint) -> RunRecord:
    """Everything recorded about the run; UserError if a file cannot be read.

    The figures come from the records of eval_ppl.sh and lab.sh evaluate mlm, else of a study, else from the
    validation during training. A record of another architecture or number of updates, or on another corpus,
    is ignored.
    """
    path, made = checkpoint.path, checkpoint.updates
    study = {} if checkpoint.averaged else _study_record(path.parent, made)
    data = _trained_on(path.parent) or study.get("data") or {}
    return RunRecord(
        architecture=checkpoint.architecture,
        updates=made,
        data=data,
        evaluations=_evaluated(checkpoint, data.get(CORPUS)) or _of_study(study) or _of_training(checkpoint),
        commit=study.get("environment", {}).get("commit"),
        averaged=checkpoint.averaged,
    )


def _read(path: Path) -> dict[str, Any]:
    """The JSON object in `path`; empty if the file is missing or holds something else."""
    record = read_json(path) if path.is_file() else {}
    return record if isinstance(record, dict) else {}


def _trained_on(folder: Path) -> dict[str, Any]:
    """The manifest of the prepared folder that `folder` was trained on, while that exists."""
    named = _read(folder / RUN_DATA).get("data")
    manifest = (manifest_of(Path(named)) if named else None) or {}
    return {key: manifest[key] for key in TEXT if key in manifest}


def _evaluated(checkpoint: Checkpoint, corpus: str | None) -> list[RecordedPerplexity]:
    """The results of evaluation commands beside the checkpoint, of these weights on the corpus."""
    found = []
    for split in SPLITS:
        result = _read(result_beside(checkpoint.path, f".{split}.json"))
        on = result.get(CORPUS) or corpus
        if _is_of(result, checkpoint) and not result.get("model_overrides") and on == (corpus or on):
            perplexities = result.get("perplexity_per_token"), result.get("perplexity_per_word")
            found += _evaluation(split, *perplexities, _command(result))
    return found


def _is_of(result: dict[str, Any], checkpoint: Checkpoint) -> bool:
    """Whether a result is of these weights, as far as it says."""
    return (
        result.get("updates") == checkpoint.updates
        and result.get("averaged", []) == checkpoint.averaged
        and own_name(result.get("architecture", checkpoint.architecture)) == own_name(checkpoint.architecture)
    )


def _command(result: dict[str, Any]) -> str:
    if "masked_tokens" in result:
        return "scripts/lab.sh evaluate mlm"
    context = f" --context-window {result['context_window']}" if result.get("context_window") else ""
    words = [f"scripts/eval_ppl.sh{context} --tokens-per-sample {result.get('tokens_per_sample')}"]
    return " ".join([*words, *map(shlex.quote, result.get("flags", []))])


def _study_record(folder: Path, made: int) -> dict[str, Any]:
    """The record of the study's cell that trained in `folder`; empty if it measured other weights.

    It is a file beside the folder, or a line in the store of a folder above.
    """
    place = folder.absolute().with_name(f"{folder.name}.json")
    lines = (stored(above).get(place.relative_to(above)) for above in place.parents)
    record = _read(place) or next(filter(None, lines), {})
    found = record.get("found")
    return record if isinstance(found, dict) and found.get("best_update") == made else {}


def _of_study(record: dict[str, Any]) -> list[RecordedPerplexity]:
    """The figures of a cell of scripts/study.sh."""
    evaluations = []
    for split in SPLITS if record else ():
        found = record["found"].get(split, {})
        source = f"scripts/study.sh {record['study']}"
        evaluations += _evaluation(split, found.get("perplexity"), found.get("perplexity_per_word"), source)
    return evaluations


def _of_training(checkpoint: Checkpoint) -> list[RecordedPerplexity]:
    """The loss of the last validation; nothing for a classifier, or where another metric chose the best."""
    chosen_by = checkpoint.groups.get("checkpoint", {}).get("best_checkpoint_metric", "loss")
    if checkpoint.score is None or checkpoint.task_name not in PERPLEXITY_TASKS or chosen_by != "loss":
        return []
    perplexity = 2.0**checkpoint.score if checkpoint.score < sys.float_info.max_exp else math.inf
    return _evaluation("valid", perplexity, None, FROM_TRAINING)


def _evaluation(
    split: str, per_token: float | None, per_word: float | None, source: str
) -> list[RecordedPerplexity]:
    """One evaluation, or none where neither perplexity is a finite number."""
    metrics = {"perplexity per token": per_token, "perplexity per word": per_word}
    finite = {name: value for name, value in metrics.items() if value is not None and math.isfinite(value)}
    return [RecordedPerplexity(split, finite, source)] if finite else []


def corpus_of(record: RunRecord) -> str:
    """The name of the training data."""
    return str(record.data.get(CORPUS) or "unknown data")


def model_card(name: str, kind: str, settings: dict[str, Any], run: RunRecord) -> bytes:
    """README.md for the model `name`; `kind` as in `AutoModelFor...`, `settings` from config.json."""
    names = ["+".join(layer) for layer in settings["plan"]]
    text = CARD.format(
        name=name,
        kind={"CausalLM": "language model", "MaskedLM": "text encoder"}.get(kind, "text classifier"),
        head=kind,
        architecture=run.architecture,
        updates=run.updates,
        plan=", ".join(names),
        averaged=f" The weights are the average of {', '.join(run.averaged)}." if run.averaged else "",
        data=_data(run),
        evaluation=_evaluation_table(run),
        limits="\n".join(f"* {limit}" for limit in limits(kind, settings)),
        licence=LICENCES.get(corpus_of(run), "unknown to the exporter"),
        trained=run.commit or "unknown",
        exported=commit(),
    )
    header = yaml.safe_dump(metadata(name, kind, run), sort_keys=False, allow_unicode=True)
    return f"---\n{header}---\n\n{text.rstrip()}\n\n{MARK}\n".encode()


def metadata(name: str, kind: str, run: RunRecord) -> dict[str, Any]:
    """The header of the card, with the figures as `model-index`."""
    header: dict[str, Any] = {
        "library_name": "transformers",
        "pipeline_tag": TASKS[kind],
        "license": "other",
        "license_name": "not-chosen",
        "tags": ["linear-attention", run.architecture],
    }
    if run.evaluations:
        results = [_result(kind, corpus_of(run), one) for one in run.evaluations]
        header["model-index"] = [{"name": name, "results": results}]
    return header


def _result(kind: str, corpus: str, one: RecordedPerplexity) -> dict[str, Any]:
    return {
        "task": {"type": TASKS[kind]},
        "dataset": {"type": corpus, "name": corpus, "split": one.split},
        "metrics": [
            {"type": "perplexity", "name": name, "value": round(value, 4)}
            for name, value in one.perplexities.items()
        ],
    }


def _data(run: RunRecord) -> str:
    if not run.data:
        return "The run's records do not name the training data."
    lines = [f"{corpus_of(run)}, tokenizer: {run.data.get('tokenizer', 'unknown')}."]
    for split, counts in (run.data.get("splits") or {}).items():
        known = [f"{counts[what]:,} {what}" for what in ("words", "tokens") if what in counts]
        if known:
            lines.append(f"* {split}: {', '.join(known)}")
    return "\n".join([lines[0], *([""] if lines[1:] else []), *lines[1:]])


def _evaluation_table(run: RunRecord) -> str:
    if not run.evaluations:
        return "The run's records hold no perplexity of this checkpoint."
    rows = ["| split | metric | value | measured by |", "|---|---|---|---|"]
    for one in run.evaluations:
        rows += [
            f"| {one.split} | {name} | {value:,.2f} | {one.source} |"
            for name, value in one.perplexities.items()
        ]
    return "\n".join(rows)


def limits(kind: str, settings: dict[str, Any]) -> list[str]:
    """Limitations that a user of the model must know."""
    used = {name for layer in settings["plan"] for name in layer}
    found = ["The model reproduces the content, the errors and the biases of its training data."]
    if settings["positions"] == "learned":
        found.append(f"It reads at most {settings['max_position_embeddings']:,} tokens.")
    elif kind == "CausalLM":
        found.append("It reads longer texts than it was trained on; how well is unknown unless stated above.")
    if "softmax" in used:
        found.append("Its softmax layers need time and memory that grow with the length of the text.")
    if used & {"lln", "lln_diag"}:
        found.append("Fine-tuning keeps the exponents of LLN attention as exported; fairseq adapts them.")
    found.append("The modelling file is plain PyTorch: slower than the compiled operator used in training.")
    return found
