"""From a checkpoint to a folder that `transformers` loads (export_hf.sh)."""

import json
import sys
from pathlib import Path

import torch
from safetensors.torch import save

from pipeline.commands.export.export_hf import parse
from pipeline.export.settings import classifier_settings, configuration
from pipeline.export.source import Source, load_source
from pipeline.export.tokenizer import tokenizer_files
from pipeline.files import begin, fingerprint, sha256_of, shown_path, write_atomically

MODELING = Path(__file__).with_name("modeling_linear_attention.py")
COMMAND = "export_hf.sh"
PREFIXES = {
    "decoder.output_projection.": "lm_head.",
    "decoder.": "model.",
    "encoder.sentence_encoder.": "model.",
    "encoder.lm_head.weight": "lm_head.decoder.weight",
    "encoder.lm_head.bias": "lm_head.decoder.bias",
    "encoder.lm_head.": "lm_head.",
}


def exported_weights(source: Source, head: str | None, tied: bool) -> dict[str, torch.Tensor]:
    """The weights under the names of the modelling file, less those that are tied to others."""
    prefixes = dict(PREFIXES)
    if head is not None:
        prefixes = {"encoder.sentence_encoder.": "model.", f"classification_heads.{head}.": "classifier."}
    weights = {}
    for key, value in source.model.state_dict().items():
        old = next((prefix for prefix in prefixes if key.startswith(prefix)), None)
        if old is None or key.endswith(".scale.batches"):
            continue
        name = (prefixes[old] + key.removeprefix(old)).replace(".scale.sigma", ".sigma")
        weights[name] = value.detach().clone().contiguous()
    if tied:
        for name in ("lm_head.weight", "lm_head.decoder.weight"):
            weights.pop(name, None)
    return weights


def model_files(source: Source, head: str | None = None) -> dict[str, bytes]:
    """Configuration, weights and modelling file; UserError for a model that cannot be exported."""
    settings = configuration(source)
    if head is not None:
        settings.update(classifier_settings(source, head))
    kind = source.kind if head is None else "SequenceClassification"
    module = MODELING.stem
    settings["architectures"] = [f"LinearAttentionFor{kind}"]
    settings["auto_map"] = {
        "AutoConfig": f"{module}.LinearAttentionConfig",
        "AutoModel": f"{module}.LinearAttentionModel",
        f"AutoModelFor{kind}": f"{module}.LinearAttentionFor{kind}",
    }
    weights = exported_weights(source, head, settings["tie_word_embeddings"])
    return {
        "config.json": json.dumps(settings, indent=2).encode(),
        "model.safetensors": save(weights, metadata={"format": "pt"}),
        MODELING.name: MODELING.read_bytes(),
    }


def export(checkpoint: Path, out: Path, head: str | None) -> str:
    """Write the folder `out`; returns the kind of the model. UserError for one that cannot be exported.

    Heads that are left out are named on stdout.
    """
    source = load_source(checkpoint)
    files = model_files(source, head)
    files |= tokenizer_files(checkpoint.parent, source.dictionary, source.kind != "CausalLM")
    begin(out, COMMAND, fingerprint([sha256_of(checkpoint), head]))
    for name, content in files.items():
        write_atomically(out / name, content)
    if head is None and (heads := getattr(source.model, "classification_heads", None)):
        name = next(iter(heads))
        print(f"left out: the classification head {name}; export it with --head {name}")
    return source.kind if head is None else "SequenceClassification"


def main() -> None:
    """Entry point."""
    options = parse(sys.argv[1:])
    kind = export(options.checkpoint.absolute(), options.out.absolute(), options.head)
    out = shown_path(options.out)
    print(
        f"written to {out}; load it with\n"
        f'  AutoModelFor{kind}.from_pretrained("{out}", trust_remote_code=True)\n'
        f'  AutoTokenizer.from_pretrained("{out}")'
    )
