"""Configuration of the models: fairseq's names wherever fairseq has the option."""

from dataclasses import dataclass, field
from typing import Optional

from fairseq.dataclass import FairseqDataclass
from fairseq.models.transformer import DEFAULT_MIN_PARAMS_TO_WRAP
from omegaconf import II


def _option(default, help_text):
    return field(default=default, metadata={"help": help_text})


NORM_HELP = (
    "norm of the layers: layernorm, rmsnorm (without parameters), weighted_rmsnorm (with a weight per "
    "channel) or scalenorm (with one parameter)"
)

PLAN_HELP = (
    "layer plan: which attention each layer has, such as 'diag*3,norm*3', 'diag+norm*6' for both in "
    "parallel, 'lln' for it everywhere, or transnormer_t1 or transnormer_t2 for diag in the first half of "
    "the layers and norm in the rest, with their activation and feature map; default: the architecture's own"
)
DICTIONARY_HELP = (
    "fingerprint of the dictionary the model is trained with; training fills it in, and a checkpoint is "
    "refused with another dictionary"
)


@dataclass
class ModelConfig(FairseqDataclass):
    """Options of language models and encoders; `with_attention_options` adds the mechanisms' own."""

    attention_backend: str = _option(
        "auto",
        "backend of causal linear attention: cpp or cuda (compiled kernels), triton, torch, reference "
        "(quadratic), or auto: cpp on a CPU, on a GPU cuda or else triton, and torch where these cannot; the "
        "log says once which one runs",
    )
    activation_fn: str = _option("relu", "activation of the ffn")
    glu_dim: Optional[int] = _option(None, "inner width of the glu; default int(8/3 D)")
    glu_activation: str = _option(
        "silu", "activation of the glu; identity: as the authors' code since 2022-10-28"
    )
    no_glu_bias: Optional[bool] = _option(None, "no biases in the glu; default: the architecture's own")
    dropout: float = _option(0.1, "dropout of embeddings and residual branches")
    attention_dropout: float = _option(0.0, "dropout of attention weights, where there are any")
    activation_dropout: float = _option(0.0, "dropout inside the ffn or glu")
    absolute_positions: Optional[str] = _option(
        None,
        "absolute positions: learned, none or, in a language model, sinusoidal or joined (embeddings of "
        "half the width, started at N(0, 1) and not scaled, beside sinusoids of the other half, as in "
        "Katharopoulos et al. 2020); default: the architecture's own",
    )
    no_token_positional_embeddings: bool = _option(
        False, "the same as --absolute-positions none (rotary positions inside attention stay)"
    )
    allow_changed: str = _option(
        "",
        "comma-separated settings that may differ from those of the checkpoint that training starts from, "
        "such as decoder_attention",
    )
    log_attention_statistics: int = _option(
        0,
        "every so many updates log the standard deviations of q and k, the temperature, the entropy and, for "
        "LLN, alpha and beta of each layer, to TensorBoard and the training log; 0 for never",
    )
    checkpoint_activations: bool = _option(
        False, "recompute each layer in the backward pass instead of keeping its activations"
    )
    offload_activations: bool = _option(
        False, "keep checkpointed activations in main memory (implies --checkpoint-activations)"
    )
    min_params_to_wrap: int = _option(
        DEFAULT_MIN_PARAMS_TO_WRAP,
        "smallest layer, in parameters, that --ddp-backend fully_sharded wraps on its own",
    )


@dataclass
class LanguageModelConfig(ModelConfig):
    """A decoder-only language model."""

    dictionary_sha256: Optional[str] = _option(None, DICTIONARY_HELP)
    decoder_attention: Optional[str] = _option(None, PLAN_HELP)
    decoder_layers: int = _option(6, "number of layers")
    decoder_embed_dim: int = _option(512, "width D of embeddings and layers")
    decoder_attention_heads: int = _option(8, "attention heads; a divisor of the width")
    decoder_ffn: str = _option("ffn", "network after attention: ffn (two layers) or glu (gated)")
    decoder_ffn_embed_dim: int = _option(2048, "inner width of the ffn")
    decoder_norm: str = _option("layernorm", NORM_HELP)
    decoder_final_norm: Optional[str] = _option(
        None, "norm after the last layer; default: the layers' norm if pre-norm, none if post-norm"
    )
    decoder_norm_position: str = _option(
        "pre", "norms before the parts of a layer (pre) or after its residual sums (post)"
    )
    no_decoder_final_norm: bool = _option(False, "no norm after the last layer")
    decoder_learned_pos: bool = _option(False, "the same as --absolute-positions learned")
    no_scale_embedding: Optional[bool] = _option(
        None, "do not multiply embeddings by sqrt(D); default: the architecture's own"
    )
    share_decoder_input_output_embed: bool = _option(
        False, "tie input and output embeddings, as most architectures do by default"
    )
    no_share_decoder_input_output_embed: Optional[bool] = _option(
        None,
        "a separate output projection instead of the tied embeddings; default: the architecture's own",
    )
    decoder_output_bias: str = _option("none", "bias of the output projection: none or learned")
    decoder_init_std: Optional[float] = _option(
        None,
        "start with matrices N(0, std^2), weights of LayerNorms N(1, std^2) and biases 0; "
        "default: each part's own way",
    )
    adaptive_input: bool = _option(False, "adaptive input embeddings (Baevski and Auli 2018)")
    adaptive_input_factor: float = _option(4, "factor by which each cluster of adaptive input is narrower")
    adaptive_input_cutoff: Optional[str] = _option(
        None, "comma-separated cluster ends of adaptive input, such as 20000,60000"
    )
    adaptive_softmax_cutoff: Optional[str] = _option(
        None, "comma-separated cluster ends of an adaptive softmax; needs --criterion adaptive_loss"
    )
    adaptive_softmax_dropout: float = _option(0.0, "dropout in the tails of the adaptive softmax")
    adaptive_softmax_factor: float = _option(
        4, "factor by which each cluster of the adaptive softmax is narrower"
    )
    tie_adaptive_weights: bool = _option(False, "tie adaptive input and adaptive softmax")
    tie_adaptive_proj: bool = _option(False, "tie their projections, too")
    decoder_layerdrop: float = _option(0.0, "probability of leaving out a layer (Fan et al. 2019)")
    decoder_layers_to_keep: Optional[str] = _option(
        None, "comma-separated layers to keep of a model trained with layer drop, counted from 0"
    )
    tokens_per_sample: int = II("task.tokens_per_sample")
    max_target_positions: Optional[int] = II("task.max_target_positions")


@dataclass
class EncoderConfig(ModelConfig):
    """Options of all encoders."""

    encoder_attention: Optional[str] = _option(None, PLAN_HELP)
    encoder_layers: int = _option(12, "number of layers")
    encoder_embed_dim: int = _option(768, "width D of embeddings and layers")
    encoder_attention_heads: int = _option(12, "attention heads; a divisor of the width")
    encoder_ffn: str = _option("ffn", "network after attention: ffn (two layers) or glu (gated)")
    encoder_ffn_embed_dim: int = _option(3072, "inner width of the ffn")
    encoder_norm: str = _option("layernorm", f"{NORM_HELP}, or batchnorm")
    no_encoder_final_norm: bool = _option(False, "no norm after the last layer of a pre-norm encoder")
    activation_fn: str = _option("gelu", "activation of the ffn and of a masked-LM head")
    attention_dropout: float = _option(0.1, "dropout of attention weights, where there are any")
    encoder_layerdrop: float = _option(0.0, "probability of leaving out a layer (Fan et al. 2019)")
    encoder_layers_to_keep: Optional[str] = _option(
        None, "comma-separated layers to keep of a model trained with layer drop, counted from 0"
    )


@dataclass
class RobertaConfig(EncoderConfig):
    """A RoBERTa encoder; the defaults are those of fairseq's `roberta_base`."""

    dictionary_sha256: Optional[str] = _option(None, DICTIONARY_HELP)
    encoder_ffn_activation: Optional[str] = _option(
        None, "activation of the ffn; default: --activation-fn, which the masked-LM head has, too"
    )
    encoder_normalize_before: bool = _option(
        False, "norms before the parts of a layer (pre-norm) instead of after the residual sums"
    )
    pooler_activation_fn: str = _option("tanh", "activation of classification heads")
    pooler_dropout: float = _option(0.0, "dropout in classification heads")
    max_positions: Optional[int] = _option(
        None, "number of learned positions; default: the task's longest sample"
    )
    untie_weights_roberta: bool = _option(
        False, "a separate output projection in the masked-LM head instead of the tied embeddings"
    )
    spectral_norm_classification_head: bool = _option(
        False, "spectral normalisation of the classification heads"
    )
    load_checkpoint_heads: bool = _option(
        False, "register and load the classification heads found in a checkpoint"
    )
