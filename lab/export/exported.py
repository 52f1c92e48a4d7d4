"""The files of an exported model: configuration and weights of its checkpoint, and its tokenizer.

tokenizer.json of `tokenizers` comes from the tokeniser beside the checkpoint: words, pieces or GPT-2's BPE.
Token indices are those of fairseq's dictionary. Text is cut as `lab.data.tokenization` cuts it.
"""

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from fairseq.data import Dictionary
from safetensors.torch import save
from sentencepiece import SentencePieceProcessor
from sentencepiece.sentencepiece_model_pb2 import ModelProto
from torch import nn

from conventions import own_attention_files
from lab.data.prepared import DICTIONARY
from lab.data.tokenization import UNKNOWN_WORD, GPT2Encoder, SentencePieceEncoder
from lab.errors import UserError
from lab.files import shown_path
from lab.run.checkpoint import (
    Checkpoint,
    load_encoder,
    read_checkpoint,
    read_dictionary,
    read_encoder,
)
from user_dir.attention.registry import attention_class
from user_dir.models.language_model import LinearAttentionLM
from user_dir.models.options import attention_options
from user_dir.models.stack import is_pre_norm, layer_places, planned_layers, positions_kind
from user_dir.modules.feed_forward import ACTIVATIONS, default_glu_width

OWN_FOLDER = "export"
"""In a folder of a user's own attentions: their forms for exported models."""
EXPORTED = ("softmax", "elu", "norm", "diag", "lln", "lln_diag", "retention", "lightning", "gated")
NORMS = ("layernorm", "rmsnorm", "weighted_rmsnorm", "scalenorm")
HUB = Path(__file__).with_name("hub")
"""The files that run an exported model, whoever loads it."""
# Beginnings of names here and in the modelling file.
PREFIXES = {
    "decoder.output_projection.": "lm_head.",
    "decoder.": "model.",
    "encoder.sentence_encoder.": "model.",
    "encoder.lm_head.weight": "lm_head.decoder.weight",
    "encoder.lm_head.bias": "lm_head.decoder.bias",
    "encoder.lm_head.": "lm_head.",
}
WEIGHTS = "model.safetensors"
SPECIAL = ("<s>", "<pad>", "</s>", "<unk>", "<mask>")
SPACE = "\u2581"


@dataclass(frozen=True)
class LoadedModel:
    """A model in evaluation mode with the configuration `cfg` it was built from.

    `kind` is "CausalLM" or "MaskedLM"; `folder` has the dictionary and the tokeniser.
    """

    model: nn.Module
    cfg: Any
    dictionary: Dictionary
    kind: str
    folder: Path | None = None

    @property
    def side(self) -> str:
        """The prefix of the fields of `cfg`."""
        return "decoder" if self.kind == "CausalLM" else "encoder"

    @property
    def stack(self) -> nn.Module:
        """The embeddings and layers."""
        return self.model.decoder if self.kind == "CausalLM" else self.model.encoder.sentence_encoder

    @property
    def plan(self) -> list[tuple[str, ...]]:
        """The names of each layer's attentions."""
        layers = getattr(self.cfg, f"{self.side}_layers")
        return planned_layers(self.cfg, self.side, type(self.model).default_plan(layers))

    @property
    def attentions(self) -> set[str]:
        """The names of those in any layer."""
        return {name for names in self.plan for name in names}


def vocabulary_folder(checkpoint: Checkpoint, given: Path | None) -> Path:
    """The folder with dictionary and tokeniser: the `given` one, the checkpoint's, or its training data's.

    Raises UserError if the dictionary is missing there or of another size than the model's.
    """
    trained_on = Path(str(checkpoint.task_settings.get("data", "")).partition(":")[0])
    folders = [given] if given else [checkpoint.path.parent, trained_on, trained_on / "input0"]
    folder = next((folder for folder in folders if (folder / DICTIONARY).is_file()), None)
    if folder is None:
        places = f"in {given}" if given else f"beside {checkpoint.path} or in its training data, {trained_on}"
        raise UserError(f"there is no {DICTIONARY} {places}; name the prepared folder with --data")
    masked = any(key.startswith("encoder.") for key in checkpoint.weights)
    size = len(Dictionary.load(str(folder / DICTIONARY))) + masked
    if checkpoint.vocabulary not in (None, size):
        raise UserError(
            f"{folder / DICTIONARY} gives {size} entries, but {checkpoint.path} was trained with "
            f"{checkpoint.vocabulary}; name the prepared folder of its training with --data"
        )
    return folder


def load_source(path: Path, data: Path | None = None) -> LoadedModel:
    """Build the model and load its weights; UserError if this project has no such model.

    `data` has the dictionary if neither the checkpoint's folder nor its training data have it.
    """
    checkpoint = read_checkpoint(path)
    folder = vocabulary_folder(checkpoint, data)
    if any(key.startswith("encoder.") for key in checkpoint.weights):
        dictionary = read_dictionary(folder)
        model = load_encoder(read_encoder(path), dictionary)
        return LoadedModel(model, model.args, dictionary, "MaskedLM", folder)
    checkpoint = checkpoint.on(folder)
    if not isinstance(checkpoint.model, LinearAttentionLM):
        raise UserError(
            f"{path} holds a {type(checkpoint.model).__name__}, which is not a language model of this project"
        )
    dictionary = checkpoint.task.source_dictionary
    return LoadedModel(checkpoint.model, checkpoint.config.model, dictionary, "CausalLM", folder)


def configuration(source: LoadedModel) -> dict[str, Any]:
    """The fields of `LinearAttentionConfig`; UserError if the modelling file lacks a feature."""
    check_exportable(source)
    cfg, side, stack = source.cfg, source.side, source.stack
    causal = side == "decoder"
    norm = getattr(cfg, f"{side}_norm")
    final = (cfg.decoder_final_norm or norm) if causal else norm
    positions = positions_kind(cfg, *(("sinusoidal", "learned", "none") if causal else ("learned", "none")))
    return {
        "model_type": "linear_attention",
        "vocab_size": len(source.dictionary),
        "hidden_size": getattr(cfg, f"{side}_embed_dim"),
        "num_attention_heads": getattr(cfg, f"{side}_attention_heads"),
        "plan": [list(names) for names in source.plan],
        "places": layer_places(cfg, side),
        "causal": causal,
        "attention_options": _attention_options(source),
        **_feed_forward(cfg, side),
        "norm": norm,
        "final_norm": None if stack.layer_norm is None else final,
        "pre_norm": is_pre_norm(cfg, side),
        "positions": positions,
        "max_position_embeddings": cfg.max_target_positions if causal else cfg.max_positions,
        "embedding_scale": stack.embed_scale if causal else 1.0,
        "output_bias": causal and cfg.decoder_output_bias == "learned",
        "head_activation": cfg.activation_fn,
        "tie_word_embeddings": not (
            cfg.no_share_decoder_input_output_embed if causal else cfg.untie_weights_roberta
        ),
        **{name: getattr(cfg, name) for name in ("dropout", "attention_dropout", "activation_dropout")},
        **_special_tokens(source),
    }


def own_forms() -> dict[str, Path]:
    """The files with the exported forms of a user's own attentions, by the name of the attention."""
    return {path.stem: path for path in own_attention_files(OWN_FOLDER)}


def check_exportable(source: LoadedModel) -> None:
    """UserError for a model with parts that the modelling file does not have."""
    cfg, side = source.cfg, source.side
    known = (*EXPORTED, *own_forms())
    if other := sorted(source.attentions - set(known)):
        raise UserError(f"{other[0]!r} attention cannot be exported; choose from {', '.join(known)}")
    if getattr(cfg, f"{side}_norm") not in NORMS:
        raise UserError(
            f"a model with --{side}-norm batchnorm cannot be exported; choose one of {', '.join(NORMS)}"
        )
    if side == "decoder" and (cfg.adaptive_input or cfg.adaptive_softmax_cutoff):
        raise UserError("adaptive input and adaptive softmax cannot be exported; train with plain embeddings")
    if side == "encoder":
        check_activation(cfg.activation_fn, "activation-fn")
    options = attention_options(cfg)
    for name in sorted(source.attentions & {"lln", "lln_diag"}):
        if options[name]["statistics"] == "batch" and not options[name]["alpha"]:
            raise UserError(
                f"{name} attention with statistics 'batch' depends on the rest of the batch and cannot be "
                "exported; train with statistics 'running'"
            )


def check_activation(name: str, flag: str) -> None:
    """UserError if the model uses an option of fairseq that the modelling file lacks."""
    if name not in ACTIVATIONS:
        raise UserError(
            f"a model with --{flag} {name} cannot be exported; choose from {', '.join(ACTIVATIONS)}"
        )


def _attention_options(source: LoadedModel) -> dict[str, dict[str, Any]]:
    """The options that the attentions were built with, which an old checkpoint's configuration may lack."""
    names = {attention_class(name): name for name in (*EXPORTED, *own_forms()) if name in source.attentions}
    chosen = {}
    for module in source.stack.modules():
        if name := names.get(type(module)):
            chosen[name] = asdict(module.options)
            if name.startswith("lln"):  # the constants of the moment matching, given or fitted
                chosen[name].update(a=module.scale.a, b=module.scale.b)
    return chosen


def _feed_forward(cfg: Any, side: str) -> dict[str, Any]:
    kind, width = getattr(cfg, f"{side}_ffn"), getattr(cfg, f"{side}_embed_dim")
    if kind == "glu":
        size, name = cfg.glu_dim or default_glu_width(width), cfg.glu_activation
    else:
        size = getattr(cfg, f"{side}_ffn_embed_dim")
        name = getattr(cfg, f"{side}_ffn_activation", None) or cfg.activation_fn
    return {
        "feed_forward": kind,
        "feed_forward_size": size,
        "feed_forward_activation": name,
        "feed_forward_bias": kind != "glu" or not cfg.no_glu_bias,
    }


def _special_tokens(source: LoadedModel) -> dict[str, int]:
    words = source.dictionary
    tokens = {"bos_token_id": words.bos(), "pad_token_id": words.pad(), "eos_token_id": words.eos()}
    return tokens if source.kind == "CausalLM" else {**tokens, "mask_token_id": words.index("<mask>")}


def classifier_settings(source: LoadedModel, head: str) -> dict[str, Any]:
    """The fields for the classification head `head`; UserError if there is none of that name."""
    heads = dict(getattr(source.model, "classification_heads", {}))
    if head not in heads:
        there = ", ".join(heads) or "none"
        raise UserError(f"the checkpoint has no classification head {head!r}; those it has: {there}")
    if source.cfg.spectral_norm_classification_head:
        raise UserError("a head with spectral normalisation cannot be exported")
    check_activation(source.cfg.pooler_activation_fn, "pooler-activation-fn")
    classes = heads[head].out_proj.out_features
    return {
        "id2label": {str(number): f"LABEL_{number}" for number in range(classes)},
        "label2id": {f"LABEL_{number}": number for number in range(classes)},
        "num_labels": classes,
        "classifier_size": heads[head].dense.out_features,
        "classifier_activation": source.cfg.pooler_activation_fn,
        "classifier_dropout": source.cfg.pooler_dropout,
        "tie_word_embeddings": False,
    }


def exported_weights(source: LoadedModel, head: str | None, tied: bool) -> dict[str, torch.Tensor]:
    """The weights under the modelling file's names, without tied duplicates."""
    prefixes = PREFIXES
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


def model_files(source: LoadedModel, head: str | None = None) -> dict[str, bytes]:
    """Configuration, weights and code; UserError for a model that cannot be exported."""
    settings = configuration(source)
    if head is not None:
        settings.update(classifier_settings(source, head))
    kind = source.kind if head is None else "SequenceClassification"
    settings["architectures"] = [f"LinearAttentionFor{kind}"]
    settings["auto_map"] = {
        "AutoConfig": "configuration_linear_attention.LinearAttentionConfig",
        "AutoModel": "modeling_linear_attention.LinearAttentionModel",
        f"AutoModelFor{kind}": f"modeling_linear_attention.LinearAttentionFor{kind}",
    }
    weights = exported_weights(source, head, settings["tie_word_embeddings"])
    code = {path.name: path.read_bytes() for path in sorted(HUB.glob("*.py"))}
    for path in (path for name, path in own_forms().items() if name in source.attentions):
        code["attention_linear_attention.py"] += b"\n\n" + path.read_bytes()
    return {
        "config.json": json.dumps(settings, indent=2).encode(),
        WEIGHTS: save(weights, metadata={"format": "pt"}),
        **code,
    }


def tokenizer_files(folder: Path, dictionary: Dictionary, encoder: bool) -> dict[str, bytes]:
    """The tokeniser's files in `folder`; a word model needs only its dictionary.

    An `encoder` gets `<s>` and `</s>` around each text and between two of them, a language model nothing.
    """
    indices = {symbol: index for index, symbol in enumerate(dictionary.symbols)}
    if all((folder / name).is_file() for name in GPT2Encoder.files):
        parts = _gpt2(folder, indices)
    elif (folder / SentencePieceEncoder.files[0]).is_file():
        parts = _pieces(folder, indices)
    else:
        parts = _words(indices)
    added = [
        {
            "id": indices[symbol],
            "content": symbol,
            "special": True,
            "normalized": False,
            "single_word": False,
            "lstrip": symbol == "<mask>",
            "rstrip": False,
        }
        for symbol in SPECIAL
        if symbol in indices and (symbol != "<unk>" or parts["model"]["unk_token"])
    ]
    whole = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": sorted(added, key=lambda token: token["id"]),
        "normalizer": None,
        "pre_tokenizer": None,
        "post_processor": _around(indices) if encoder else None,
        "decoder": None,
        **parts,
    }
    names = {"bos": "<s>", "pad": "<pad>", "eos": "</s>", "unk": parts["model"]["unk_token"]}
    if encoder:
        names |= {"cls": "<s>", "sep": "</s>", "mask": "<mask>"}
    about = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_input_names": ["input_ids", "attention_mask"],
        "clean_up_tokenization_spaces": False,
        **{f"{name}_token": symbol for name, symbol in names.items() if symbol},
    }
    return {
        "tokenizer.json": json.dumps(whole, ensure_ascii=False).encode(),
        "tokenizer_config.json": json.dumps(about, indent=2).encode(),
    }


def _around(indices: dict[str, int]) -> dict[str, Any]:
    """RoBERTa's template, `<s> a </s>` and `<s> a </s> </s> b </s>`."""

    def token(symbol: str) -> dict[str, Any]:
        return {"SpecialToken": {"id": symbol, "type_id": 0}}

    def text(name: str) -> dict[str, Any]:
        return {"Sequence": {"id": name, "type_id": 0}}

    single = [token("<s>"), text("A"), token("</s>")]
    return {
        "type": "TemplateProcessing",
        "single": single,
        "pair": [*single, token("</s>"), text("B"), token("</s>")],
        "special_tokens": {
            symbol: {"id": symbol, "ids": [indices[symbol]], "tokens": [symbol]} for symbol in ("<s>", "</s>")
        },
    }


def _words(indices: dict[str, int]) -> dict[str, Any]:
    return {
        "pre_tokenizer": {"type": "WhitespaceSplit"},
        "model": {"type": "WordLevel", "vocab": indices, "unk_token": "<unk>"},
    }


def _gpt2(folder: Path, indices: dict[str, int]) -> dict[str, Any]:
    numbers, pairs = (folder / name for name in GPT2Encoder.files)
    written = json.loads(numbers.read_text(encoding="utf-8"))
    vocabulary = {word: indices[str(number)] for word, number in written.items() if str(number) in indices}
    vocabulary |= {symbol: indices[symbol] for symbol in SPECIAL if symbol in indices}
    merges = [line.split() for line in pairs.read_text(encoding="utf-8").split("\n")[1:-1]]
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    return {
        "normalizer": {"type": "Strip", "strip_left": True, "strip_right": True},
        "pre_tokenizer": byte_level,
        "decoder": byte_level,
        "model": {
            "type": "BPE",
            "vocab": vocabulary,
            "merges": [pair for pair in merges if "".join(pair) in vocabulary],
            "unk_token": "<unk>",
        },
    }


def _pieces(folder: Path, indices: dict[str, int]) -> dict[str, Any]:
    """Sentencepiece's BPE: a pair merges in the order of its piece's score, rare characters become bytes.

    Nothing is unknown; `<unk>` in a text is WikiText's own, a piece like others. UserError for a model whose
    pieces this would cut otherwise.
    """
    ranks = _ranks(folder, indices)
    return {
        **_steps(),
        "model": {
            "type": "BPE",
            "vocab": indices,
            "merges": [pair for pair in _merges(ranks) if "".join(pair) in indices],
            "unk_token": None,
            "ignore_merges": True,
            "fuse_unk": False,
            "byte_fallback": True,
        },
    }


def _ranks(folder: Path, indices: dict[str, int]) -> dict[str, int]:
    """The pieces that merges make, with their numbers in the model, the best score first.

    UserError for a model of another kind, or with pieces that the dictionary lacks.
    """
    path = folder / SentencePieceEncoder.files[0]
    model = path.read_bytes()
    described = ModelProto.FromString(model)
    if described.trainer_spec.model_type != described.trainer_spec.BPE:
        raise UserError(f"{shown_path(path)} is not a BPE model, and only those can be exported")
    if described.normalizer_spec.precompiled_charsmap:
        raise UserError(f"{shown_path(path)} rewrites characters; train it with the normalizer `identity`")
    processor = SentencePieceProcessor(model_proto=model)
    pieces = {processor.id_to_piece(number): number for number in range(processor.get_piece_size())}
    ranks = {
        piece: number
        for piece, number in pieces.items()
        if piece != UNKNOWN_WORD and not processor.is_unknown(number) and not processor.is_byte(number)
    }
    if missing := [piece for piece in ranks if piece not in indices]:
        raise UserError(
            f"{shown_path(folder / DICTIONARY)} lacks {len(missing):,} pieces of the tokeniser, such as "
            f"{missing[0]!r}, without which texts cannot be cut; prepare the data with data-prep/text.sh"
        )
    return ranks


def _merges(ranks: dict[str, int]) -> list[list[str]]:
    """The pairs of pieces whose union is a piece, in the order of its rank."""
    merges = []
    for piece, rank in ranks.items():
        cuts = ((piece[:cut], piece[cut:]) for cut in range(1, len(piece)))
        merges += [(rank, list(pair)) for pair in cuts if pair[0] in ranks and pair[1] in ranks]
    merges.sort(key=lambda merge: merge[0])
    return [pair for _, pair in merges]


def _steps() -> dict[str, Any]:
    """What sentencepiece does with spaces and `<unk>` before it cuts a text, and how pieces become text."""
    steps = [
        {"type": "Replace", "pattern": {"Regex": r"\s+"}, "content": " "},
        {"type": "Strip", "strip_left": True, "strip_right": True},
        {"type": "Prepend", "prepend": SPACE},
        {"type": "Replace", "pattern": {"String": " "}, "content": SPACE},
    ]
    undo = [
        {"type": "Replace", "pattern": {"String": SPACE}, "content": " "},
        {"type": "ByteFallback"},
        {"type": "Fuse"},
        {"type": "Strip", "content": " ", "start": 1, "stop": 0},
    ]
    return {
        "normalizer": {"type": "Sequence", "normalizers": steps},
        "pre_tokenizer": {  # a separate piece, which no merge makes
            "type": "Split",
            "pattern": {"String": UNKNOWN_WORD},
            "behavior": "Isolated",
            "invert": False,
        },
        "decoder": {"type": "Sequence", "decoders": undo},
    }
