"""RoBERTa encoders as fairseq builds them, trained on random tokens."""

from typing import Any

import torch
from fairseq.models import MODEL_DATACLASS_REGISTRY

from benchmarks.sizes import ROBERTA_BASE
from benchmarks.workers.language_models import LanguageModel
from pipeline.methods import MASKED_PART, Size


def encoder_flags(architecture: str, size: Size) -> list[str]:
    """The flags with which fairseq builds `architecture` at `size`.

    Where an architecture differs from RoBERTa's base size (FLASH has twice the layers, one head, …), the
    ratio is kept; at `ROBERTA_BASE` all flags are the architecture's own defaults.
    """
    own = MODEL_DATACLASS_REGISTRY[architecture]()
    flags = {
        "--arch": architecture,
        "--encoder-layers": own.encoder_layers * size.layers // ROBERTA_BASE.layers,
        "--encoder-embed-dim": size.width,
        "--encoder-attention-heads": size.heads if own.encoder_attention_heads == ROBERTA_BASE.heads else 1,
        "--encoder-ffn-embed-dim": own.encoder_ffn_embed_dim * size.width // ROBERTA_BASE.width,
    }
    if own.glu_dim:
        flags["--glu-dim"] = own.glu_dim * size.width // ROBERTA_BASE.width
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
