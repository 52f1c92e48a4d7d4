"""RoBERTa (Liu et al. 2019) with the attentions of a layer plan, built from its configuration."""

from argparse import ArgumentParser
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fairseq import hub_utils, utils
from fairseq.models import BaseFairseqModel, FairseqEncoder
from fairseq.models.roberta.model import RobertaClassificationHead, RobertaLMHead, RobertaModel
from fairseq.models.roberta.model import RobertaHubInterface as Hub
from fairseq.tasks.language_modeling import LanguageModelingTask
from torch import Tensor, nn

from conventions.plans import Layer

from ..checks.dictionaries import check_dictionary
from ..errors import UserError
from ..modules.feed_forward import activation
from ..tokenizers import tokenizer_in
from .attention_statistics import log_attention_statistics
from .encoder import LinearAttentionEncoder
from .options import check_numbers
from .stack import Planned, block_length, check_reach, planned_layers
from .vocabulary import check_size


def head_activation(name: str) -> Callable[[Tensor], Tensor]:
    """fairseq's activation called `name`, or ours; UserError if neither has one."""
    known = utils.get_available_activation_fns()
    return utils.get_activation_fn(name) if name in known else activation(name)


class ClassificationHeads(nn.ModuleDict):
    """The heads by name; UserError, which lists them, for an unknown one."""

    def __getitem__(self, name: str) -> nn.Module:
        if name not in self:
            raise UserError(
                f"the model has no classification head {name!r}, but {', '.join(self) or 'none'}; name one "
                "of those, or fine-tune it first"
            )
        return super().__getitem__(name)


class RobertaEncoder(FairseqEncoder):
    """The sentence encoder and the masked-LM head, with the call and the names of fairseq's.

    Args:
        cfg: a `RobertaConfig` with its `max_positions` filled in.
        dictionary: fairseq's dictionary, the mask included.
        plan: the mechanisms of each layer.
    """

    def __init__(self, cfg: Any, dictionary: Any, plan: list[Layer]) -> None:
        super().__init__(dictionary)
        self.longest = cfg.max_positions
        embed_tokens = nn.Embedding(len(dictionary), cfg.encoder_embed_dim, dictionary.pad())
        self.sentence_encoder = LinearAttentionEncoder(cfg, embed_tokens, plan)
        self.lm_head = RobertaLMHead(
            embed_dim=cfg.encoder_embed_dim,
            output_dim=len(dictionary),
            activation_fn="gelu",
            weight=None if cfg.untie_weights_roberta else embed_tokens.weight,
        )
        self.lm_head.activation_fn = head_activation(cfg.activation_fn)

    def forward(
        self,
        src_tokens: Tensor,
        features_only: bool = False,
        return_all_hiddens: bool = False,
        masked_tokens: Tensor | None = None,
        **unused: object,
    ) -> tuple[Tensor, dict[str, list[Tensor] | None]]:
        """Logits of every token, or of the masked ones.

        Args:
            src_tokens: `(B, N)` token indices.
            features_only: stop before the masked-LM head.
            return_all_hiddens: also return the states between layers.
            masked_tokens: bool `(B, N)`; only these are projected to the vocabulary.

        Returns:
            `(B, N, vocabulary)`, `(masked, vocabulary)` or `(B, N, D)` features; and a dictionary with
            `inner_states`, each `(N, B, D)`, or None.
        """
        x, states = self.sentence_encoder(src_tokens)
        extra = {"inner_states": states if return_all_hiddens else None}
        return (x if features_only else self.output_layer(x, masked_tokens)), extra

    def output_layer(self, features: Tensor, masked_tokens: Tensor | None = None) -> Tensor:
        """Features `(B, N, D)` to logits, of the masked tokens only if these are given."""
        return self.lm_head(features, masked_tokens)

    def max_positions(self) -> int:
        """The longest input, in tokens."""
        return self.longest


class LinearAttentionRoberta(Planned, RobertaModel):
    """An encoder whose layers are described by a plan; architectures are subclasses with defaults.

    Classification heads, checkpoints and the hub interface (`from_pretrained`, `extract_features`,
    `predict`) are fairseq's.
    """

    def __init__(self, args: Any, encoder: RobertaEncoder) -> None:
        super().__init__(args, encoder)
        self.classification_heads = ClassificationHeads()

    @classmethod
    def hub_models(cls) -> dict[str, str]:
        """Empty: fairseq offers no download that fits these models."""
        return {}

    @classmethod
    def from_pretrained(
        cls,
        model_name_or_path: str,
        checkpoint_file: str = "model.pt",
        data_name_or_path: str = ".",
        bpe: str | None = None,
        **changes: object,
    ) -> Hub:
        """A checkpoint with the dictionary and the tokeniser beside it, as fairseq's hub interface.

        Args:
            model_name_or_path: the folder that training wrote.
            checkpoint_file: a file in it.
            data_name_or_path: the folder of the dictionary, or of a task's `label` and `input0`.
            bpe: fairseq's name of another tokeniser than the one in the folder, with its files in `changes`.
            changes: other values for the checkpoint's settings.

        Raises:
            UserError: for a checkpoint of another kind of model, such as a language model.
        """
        folder = Path(model_name_or_path)
        tokenizer = {"bpe": bpe} if bpe else {"bpe": "sentencepiece"} | tokenizer_in(folder)
        changes = {"load_checkpoint_heads": True} | tokenizer | changes
        found = hub_utils.from_pretrained(
            model_name_or_path, checkpoint_file, data_name_or_path, archive_map=cls.hub_models(), **changes
        )
        if len(found["models"]) > 1:
            raise UserError(f"checkpoint_file names {len(found['models'])} checkpoints; an encoder takes one")
        model = found["models"][0]
        if not isinstance(model, RobertaModel):
            raise UserError(
                f"{folder / checkpoint_file} holds a {type(model).__name__}, which is not an encoder; load a "
                "language model with LinearAttentionLM.from_pretrained"
            )
        return Hub(found["args"], found["task"], model)

    @classmethod
    def add_args(cls, parser: ArgumentParser) -> None:
        """The fields of the configuration as flags, as models with a dataclass have them."""
        BaseFairseqModel.add_args.__func__(cls, parser)

    @classmethod
    def build_model(cls, args: Any, task: Any) -> "LinearAttentionRoberta":
        """The model that `args` (a `RobertaConfig`) describes; raises UserError if it is invalid."""
        check_numbers(args)
        if isinstance(task, LanguageModelingTask):
            raise UserError(
                "the model is an encoder, which cannot model language from left to right; evaluate it with "
                "scripts/lab.sh evaluate mlm, or train with --task masked_lm"
            )
        check_dictionary(args, task.source_dictionary)
        if args.max_positions is None:
            args.max_positions = task.max_positions()
        cls.fill_in_options(args)
        layers = planned_layers(args, "encoder", cls.default_plan(args.encoder_layers))
        check_reach(args, layers, block_length(task))
        model = cls(args, RobertaEncoder(args, task.source_dictionary, layers))
        layers = model.encoder.sentence_encoder.layers
        log_attention_statistics(model, layers, args.log_attention_statistics)
        return model

    def register_classification_head(
        self, name: str, num_classes: int | None = None, inner_dim: int | None = None, **unused: object
    ) -> None:
        """A head called `name` on the first token; it replaces one of the same name."""
        head = RobertaClassificationHead(
            input_dim=self.args.encoder_embed_dim,
            inner_dim=inner_dim or self.args.encoder_embed_dim,
            num_classes=num_classes,
            activation_fn="tanh",
            pooler_dropout=self.args.pooler_dropout,
            do_spectral_norm=self.args.spectral_norm_classification_head,
        )
        head.activation_fn = head_activation(self.args.pooler_activation_fn)
        self.classification_heads[name] = head

    def upgrade_state_dict_named(self, state_dict: dict[str, Tensor], name: str) -> None:
        """Accept checkpoints of fairseq's RoBERTa and of the authors' fork."""
        super().upgrade_state_dict_named(state_dict, name)
        prefix = f"{name}." if name else ""
        embedding = f"{prefix}encoder.sentence_encoder.embed_tokens.weight"
        check_size(state_dict, embedding, self.encoder.dictionary)
        for key in [key for key in state_dict if key.endswith(("._float_tensor", ".version"))]:
            del state_dict[key]
