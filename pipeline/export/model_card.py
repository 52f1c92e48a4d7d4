"""The model card of an exported model: README.md with the metadata that model hubs read."""

from typing import Any

import yaml

from pipeline.data.bundled_corpus import CORPUS as BUNDLED
from pipeline.data.published import CORPORA
from pipeline.export.run_record import Evaluation, RunRecord, corpus_of
from pipeline.provenance import commit

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
{updates:,} updates and exported to `transformers`. Attention of the layers: {plan}.

```python
from transformers import AutoModelFor{head}, AutoTokenizer

model = AutoModelFor{head}.from_pretrained("{name}", trust_remote_code=True)
tokenizer = AutoTokenizer.from_pretrained("{name}")
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


def model_card(name: str, kind: str, settings: dict[str, Any], run: RunRecord) -> bytes:
    """README.md for the model `name`; `kind` as in `AutoModelFor...`, `settings` those of config.json."""
    names = ["+".join(layer) for layer in settings["plan"]]
    text = CARD.format(
        name=name,
        kind={"CausalLM": "language model", "MaskedLM": "text encoder"}.get(kind, "text classifier"),
        head=kind,
        architecture=run.architecture,
        updates=run.updates,
        plan=", ".join(names),
        data=_data(run),
        evaluation=_evaluation_table(run),
        limits="\n".join(f"* {limit}" for limit in limits(kind, settings)),
        licence=LICENCES.get(corpus_of(run), "unknown to the exporter"),
        trained=run.commit or "unknown",
        exported=commit(),
    )
    header = yaml.safe_dump(metadata(name, kind, run), sort_keys=False, allow_unicode=True)
    return f"---\n{header}---\n\n{text}".encode()


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


def _result(kind: str, corpus: str, one: Evaluation) -> dict[str, Any]:
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
    """What a user of the model must know."""
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
