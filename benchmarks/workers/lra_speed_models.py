"""Text classifiers of Long Range Arena as fairseq builds them, on random tokens or on reviews."""

import json
from pathlib import Path
from typing import Any

import torch

from benchmarks.workers.language_models import LanguageModel
from pipeline.methods import Size
from user_dir.models.architectures import T1, T2, TRANSNORMER

PRESET = "lra_state_space"
CLASSES = ("neg", "pos")
MANIFEST = {"task": "text", "pipeline": "state-space", "inputs": ["input0"], "classes": CLASSES}
# Qin et al. 2022, Table 7, as the authors' code was then: TransNormer with a gated network of int(4/3 D), the
# others with one of 2 D; block size 32; what the methods have of their own.
TRANSNORMERS = {"transnormer_t1": T1, "transnormer_t2": T2}
BLOCKS = {"diag_block_size": 32, "lln_diag_block_size": 32}
OWN = {
    "performer": {"performer_features": 32},
    "cosformer": {"encoder_attention_heads": 2},
    "transformer_ls": {"transformer_ls_window": 8, "transformer_ls_rank": 32},
}


def classifier_flags(name: str, size: Size) -> list[str]:
    """The flags with which fairseq builds the classifier with the attention `name` at `size`."""
    options = {
        "encoder_layers": size.layers,
        "encoder_embed_dim": size.width,
        "encoder_attention_heads": size.heads,
        "encoder_ffn_embed_dim": 2 * size.width,
        "encoder_ffn": "glu" if name in TRANSNORMERS else "ffn",
        **BLOCKS,
        **OWN.get(name, {}),
        "encoder_attention": TRANSNORMER(size.layers) if name in TRANSNORMERS else name,
        **TRANSNORMERS.get(name, {}),
    }
    flags = [word for key, value in options.items() for word in (f"--{key.replace('_', '-')}", str(value))]
    return ["--arch", PRESET, *flags]


class TextClassifier(LanguageModel):
    """A classifier with its task, loss and optimizer, built from the flags a user would type.

    Args: as for `LanguageModel`, `architecture` the name of an attention; and
        reviews: a folder of data-prep/lra.sh whose training rows make the batches, cut to the length asked
            for and padded to the longest of a batch; without it rows are random and have that length.
    """

    def __init__(
        self, architecture: str, size: Size, length: int, positions: int, device: str, reviews: Path | None
    ) -> None:
        self.reviews = reviews
        super().__init__(architecture, size, length, positions, device)
        if reviews is not None:
            self.task.load_dataset("train")
            self.order = torch.randperm(len(self.task.dataset("train"))).tolist()

    def data_folder(self, folder: Path, size: Size, length: int) -> Path:
        """See `LanguageModel.data_folder`."""
        if self.reviews is not None:
            return self.reviews
        about = {**MANIFEST, "length": length, "origin": "generated", "splits": {}}
        (folder / "preparation.json").write_text(json.dumps(about), encoding="utf-8")
        return super().data_folder(folder, size, length)

    def task_flags(self, length: int) -> list[str]:
        """None: rows have the length they have."""
        return []

    def flags(self, architecture: str, size: Size, positions: int) -> list[str]:
        """See `LanguageModel.flags`."""
        flags = ["--task", "lra", *classifier_flags(architecture, size)]
        return [*flags, "--max-positions", str(positions), "--criterion", "lra"]

    def sample(self, rows: int, length: int) -> dict[str, Any]:
        """A batch as the task makes it, on the device."""
        if self.reviews is None:
            tokens, lengths = self.tokens(rows, length), torch.full((rows,), length)
            target = torch.randint(len(CLASSES), (rows,))
        else:
            batch = self._next_reviews(rows, length)
            tokens, lengths = (batch["net_input"][key] for key in ("src_tokens", "src_lengths"))
            target = batch["target"]
        inputs = {"src_tokens": tokens.to(self.device), "src_lengths": lengths.to(self.device)}
        return {
            "id": torch.arange(rows),
            "nsentences": rows,
            "ntokens": int(lengths.sum()),
            "net_input": inputs,
            "target": target.to(self.device),
        }

    def _next_reviews(self, rows: int, length: int) -> dict[str, Any]:
        dataset = self.task.dataset("train")
        chosen, self.order = self.order[:rows], self.order[rows:] + self.order[:rows]
        samples = [dataset[index] for index in chosen]
        return dataset.collater([{**sample, "rows": [sample["rows"][0][:length]]} for sample in samples])

    @torch.no_grad()
    def infer(self, sample: dict[str, Any]) -> None:
        """The forward pass without gradients, in evaluation mode."""
        self.model.eval()
        self.model(**sample["net_input"])
