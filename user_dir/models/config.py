"""Configuration of the language models: fairseq's names wherever fairseq has the option."""

from dataclasses import dataclass, field
from typing import Optional

from fairseq.dataclass import FairseqDataclass
from fairseq.models.transformer import DEFAULT_MIN_PARAMS_TO_WRAP
from omegaconf import II


def _option(default, help_text):
    return field(default=default, metadata={"help": help_text})


@dataclass
class LanguageModelConfig(FairseqDataclass):
    """Everything but the mechanisms' own options, which `with_attention_options` adds."""

    decoder_attention: Optional[str] = _option(
        None,
        "layer plan: which attention each layer has, such as 'diag*3,norm*3', or 'diag+norm*6' for both in "
        "parallel; default: the architecture's own for the number of layers",
    )
    attention_backend: str = _option(
        "auto",
        "what computes causal linear attention: cpp or cuda (compiled kernels), torch, reference "
        "(quadratic), or auto, the first of these that can; the log says once which one runs",
    )
    decoder_layers: int = _option(6, "number of layers")
    decoder_embed_dim: int = _option(512, "width D of embeddings and layers")
    decoder_attention_heads: int = _option(8, "attention heads; a divisor of the width")
    decoder_ffn: str = _option("ffn", "network after attention: ffn (two layers) or glu (gated)")
    decoder_ffn_embed_dim: int = _option(2048, "inner width of the ffn")
    activation_fn: str = _option("relu", "activation of the ffn")
    glu_dim: Optional[int] = _option(None, "inner width of the glu; default int(8/3 D)")
    glu_activation: str = _option(
        "silu", "activation of the glu; identity is what the authors' code computes since 2022-10-28"
    )
    decoder_norm: str = _option("layernorm", "norm of the layers: layernorm, or rmsnorm without parameters")
    dropout: float = _option(0.1, "dropout of embeddings and residual branches")
    attention_dropout: float = _option(0.0, "dropout of attention weights, where there are any")
    activation_dropout: float = _option(0.0, "dropout inside the ffn or glu")
    no_decoder_final_norm: bool = _option(False, "no norm after the last layer")
    decoder_learned_pos: bool = _option(False, "learned positions instead of sinusoidal ones")
    no_token_positional_embeddings: bool = _option(
        False, "no absolute positions (rotary ones inside attention stay)"
    )
    no_scale_embedding: bool = _option(False, "do not multiply embeddings by sqrt(D)")
    share_decoder_input_output_embed: bool = _option(
        False,
        "tie input and output embeddings; the default here, and accepted so that usual commands work",
    )
    no_share_decoder_input_output_embed: bool = _option(
        False, "an output projection of its own instead of the tied embeddings"
    )
    adaptive_input: bool = _option(False, "adaptive input embeddings (Baevski and Auli 2018)")
    adaptive_input_factor: float = _option(4, "by how much each cluster of adaptive input is narrower")
    adaptive_input_cutoff: Optional[str] = _option(
        None, "comma-separated cluster ends of adaptive input, such as 20000,60000"
    )
    adaptive_softmax_cutoff: Optional[str] = _option(
        None, "comma-separated cluster ends of an adaptive softmax; needs --criterion adaptive_loss"
    )
    adaptive_softmax_dropout: float = _option(0.0, "dropout in the tails of the adaptive softmax")
    adaptive_softmax_factor: float = _option(
        4, "by how much each cluster of the adaptive softmax is narrower"
    )
    tie_adaptive_weights: bool = _option(False, "tie adaptive input and adaptive softmax")
    tie_adaptive_proj: bool = _option(False, "tie their projections, too")
    checkpoint_activations: bool = _option(
        False, "recompute each layer in the backward pass instead of keeping its activations"
    )
    offload_activations: bool = _option(
        False, "keep checkpointed activations in main memory (implies --checkpoint-activations)"
    )
    decoder_layerdrop: float = _option(0.0, "probability of leaving out a layer (Fan et al. 2019)")
    decoder_layers_to_keep: Optional[str] = _option(
        None, "comma-separated layers to keep of a model trained with layer drop, counted from 0"
    )
    min_params_to_wrap: int = _option(
        DEFAULT_MIN_PARAMS_TO_WRAP,
        "smallest layer, in parameters, that --ddp-backend fully_sharded wraps on its own",
    )
    tokens_per_sample: int = II("task.tokens_per_sample")
    max_target_positions: Optional[int] = II("task.max_target_positions")
