"""RoBERTa encoders as fairseq builds them, trained on random tokens; their names and looks."""

from typing import Any

import torch
from fairseq.models import MODEL_DATACLASS_REGISTRY

from benchmarks.language_models import LanguageModel
from pipeline.methods import ENCODERS, MAIN_ENCODERS, MASKED_PART, Size

KNOWN = [encoder.encoder_architecture for encoder in ENCODERS.values()]
DEFAULT = [ENCODERS[name].encoder_architecture for name in MAIN_ENCODERS]
CPU_SIZE = Size(layers=2, width=256, heads=4, vocabulary=1000)
BASE = Size(layers=12, width=768, heads=12, vocabulary=50_265)


def encoder_flags(architecture: str, size: Size) -> list[str]:
    """The flags with which fairseq builds `architecture` at `size`.

    Where an architecture differs from RoBERTa's base size (FLASH has twice the layers, one head, …), the
    ratio is kept; at `BASE` all flags are the architecture's own defaults.
    """
    own = MODEL_DATACLASS_REGISTRY[architecture]()
    flags = {
        "--arch": architecture,
        "--encoder-layers": own.encoder_layers * size.layers // BASE.layers,
        "--encoder-embed-dim": size.width,
        "--encoder-attention-heads": size.heads if own.encoder_attention_heads == BASE.heads else 1,
        "--encoder-ffn-embed-dim": own.encoder_ffn_embed_dim * size.width // BASE.width,
    }
    if own.glu_dim:
        flags["--glu-dim"] = own.glu_dim * size.width // BASE.width
    return [str(word) for flag in flags.items() for word in flag]


class MaskedLanguageModel(LanguageModel):
    """An encoder with its task, loss and optimizer, built from the flags a user would type.

    Args: as for `LanguageModel`; `positions` is `--max-positions`.
    """

    added_symbols = 1  # the mask

    def flags(self, architecture: str, size: Size, positions: int) -> list[str]:
        """See `LanguageModel.flags`."""
        flags = ["--task", "masked_lm", *encoder_flags(architecture, size)]
        return [*flags, "--max-positions", str(positions), "--criterion", "masked_lm"]

    def sample(self, rows: int, length: int) -> dict[str, Any]:
        """A training batch as fairseq's masked language modelling dataset makes it."""
        words = self.tokens(rows, length)
        masked = torch.rand(rows, length, device=self.device).argsort() < max(1, int(MASKED_PART * length))
        pad, mask = self.task.source_dictionary.pad(), self.task.mask_idx
        return {
            "id": torch.arange(rows),
            "nsentences": rows,
            "ntokens": rows * length,
            "net_input": {
                "src_tokens": words.masked_fill(masked, mask),
                "src_lengths": torch.full((rows,), length, device=self.device),
            },
            "target": words.masked_fill(~masked, pad),
        }
