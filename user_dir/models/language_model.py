"""The decoder language model of all architectures, built from its configuration."""

from typing import Any

from fairseq.models import FairseqLanguageModel
from fairseq.models.transformer import Embedding
from fairseq.modules import AdaptiveInput
from torch import Tensor, nn

from ..checks.dictionaries import check_dictionary
from ..errors import UserError, check_choice
from .attention_statistics import log_attention_statistics
from .decoder import LinearAttentionDecoder, cutoffs
from .fork_names import rename_with_decays
from .options import check_numbers
from .stack import DECODER_POSITIONS, Planned, block_length, check_reach, planned_layers, positions_kind


class LinearAttentionLM(Planned, FairseqLanguageModel):
    """A language model whose layers are described by a plan; architectures are subclasses with defaults."""

    decoder_class = LinearAttentionDecoder

    @classmethod
    def build_model(cls, args: Any, task: Any) -> "LinearAttentionLM":
        """The model that `args` (a `LanguageModelConfig`) describes; raises UserError if it is invalid."""
        check_numbers(args)
        _resolve(args)
        cls.fill_in_options(args)
        check_dictionary(args, task.source_dictionary)
        layers = planned_layers(args, "decoder", cls.default_plan(args.decoder_layers))
        check_reach(args, layers, block_length(task))
        embed_tokens = _build_embedding(args, task.source_dictionary)
        model = cls(cls.decoder_class(args, task.target_dictionary, embed_tokens, layers))
        if args.decoder_init_std is not None:
            _initialise(model, args.decoder_init_std)
        log_attention_statistics(model, model.decoder.layers, args.log_attention_statistics)
        return model

    def upgrade_state_dict_named(self, state_dict: dict[str, Tensor], name: str) -> None:
        """Accept checkpoints of torchscale's RetNet and released ones of TransNormerLLM."""
        rename_with_decays(state_dict, self.decoder, f"{name}.decoder" if name else "decoder")
        super().upgrade_state_dict_named(state_dict, name)


def _resolve(args: Any) -> None:
    """Fill in options that depend on others, and refuse contradictions."""
    if args.max_target_positions is None:
        args.max_target_positions = args.tokens_per_sample
    if args.tokens_per_sample > args.max_target_positions:
        raise UserError(
            f"--tokens-per-sample is {args.tokens_per_sample}, more than the {args.max_target_positions} "
            "positions of the model; raise --max-target-positions or shorten the samples"
        )
    check_choice("--decoder-output-bias is", args.decoder_output_bias, ("none", "learned"))
    if (args.decoder_init_std or 0) < 0:
        raise UserError(f"--decoder-init-std is {args.decoder_init_std}; it must be 0 or more")
    if args.share_decoder_input_output_embed and args.no_share_decoder_input_output_embed:
        raise UserError(
            "--share-decoder-input-output-embed and --no-share-decoder-input-output-embed exclude each "
            "other; give one"
        )
    if args.tie_adaptive_weights and not (
        args.adaptive_input
        and args.adaptive_input_cutoff == args.adaptive_softmax_cutoff
        and args.adaptive_input_factor == args.adaptive_softmax_factor
    ):
        raise UserError(
            "--tie-adaptive-weights needs --adaptive-input with the cutoffs and the factor of the adaptive "
            "softmax"
        )
    if args.adaptive_input and args.adaptive_input_cutoff is None:
        raise UserError("--adaptive-input needs --adaptive-input-cutoff, such as 20000,60000")


def _initialise(model: nn.Module, std: float) -> None:
    """Matrices N(0, std^2), weights of LayerNorms N(1, std^2), biases and the padding's embedding 0."""
    # Embeddings last: the output projection may share their matrix, whose row of the padding is 0.
    for kind, mean in ((nn.Linear, 0.0), (nn.LayerNorm, 1.0), (nn.Embedding, 0.0)):
        for module in model.modules():
            if not isinstance(module, kind):
                continue
            nn.init.normal_(module.weight, mean, std)
            if getattr(module, "bias", None) is not None:
                nn.init.zeros_(module.bias)
            if getattr(module, "padding_idx", None) is not None:
                nn.init.zeros_(module.weight[module.padding_idx])


def _build_embedding(args: Any, dictionary: Any) -> nn.Module:
    if positions_kind(args, *DECODER_POSITIONS) == "joined":
        return _half_embedding(args, dictionary)
    if not args.adaptive_input:
        return Embedding(len(dictionary), args.decoder_embed_dim, dictionary.pad())
    return AdaptiveInput(
        len(dictionary),
        dictionary.pad(),
        args.decoder_embed_dim,
        args.adaptive_input_factor,
        args.decoder_embed_dim,
        cutoffs(args.adaptive_input_cutoff, "--adaptive-input-cutoff", len(dictionary)),
    )


def _half_embedding(args: Any, dictionary: Any) -> nn.Module:
    """The embedding of half the width that joined positions leave, N(0, 1)."""
    if args.adaptive_input or not args.no_share_decoder_input_output_embed:
        raise UserError(
            "--absolute-positions joined leaves embeddings half the width, which cannot be tied or adaptive; "
            "give --no-share-decoder-input-output-embed and no --adaptive-input"
        )
    embedding = nn.Embedding(len(dictionary), args.decoder_embed_dim // 2, dictionary.pad())
    nn.init.zeros_(embedding.weight[dictionary.pad()])
    return embedding
