"""Trains architectures one after the other in one process, which saves the start of fairseq for each.

Arguments: a folder that fairseq-preprocess wrote, and names of architectures. After a line `== NAME`
comes fairseq's log, or a traceback.
"""

import logging
import sys
import traceback
from pathlib import Path

from fairseq import options
from fairseq.dataclass.utils import convert_namespace_to_omegaconf
from fairseq.logging import metrics
from fairseq_cli.train import main

ROOT = Path(__file__).resolve().parents[2]
COMMON = (
    "--user-dir", str(ROOT / "user_dir"), "--max-update", "10", "--batch-size", "4",
    "--tokens-per-sample", "64", "--sample-break-mode", "none", "--optimizer", "adam",
    "--lr", "0.003", "--clip-norm", "1", "--cpu",
    "--seed", "1", "--log-format", "json", "--log-interval", "1", "--no-save", "--disable-validation",
)  # fmt: skip
LANGUAGE_MODEL = (
    "--task", "language_modeling", "--max-target-positions", "64", "--decoder-layers", "2",
    "--decoder-embed-dim", "16", "--decoder-ffn-embed-dim", "32",
)  # fmt: skip
ENCODER = (
    "--task", "masked_lm", "--criterion", "masked_lm", "--max-positions", "128", "--encoder-layers", "2",
    "--encoder-embed-dim", "16", "--encoder-ffn-embed-dim", "32",
)  # fmt: skip
ONE_HEAD = ("cosformer_lm", "flash_lm", "flash_quad_lm", "tnn_lm")


def flags(name: str) -> list[str]:
    """Those of a small model of architecture `name`."""
    encoder = name.startswith("roberta_")
    words = [*(ENCODER if encoder else LANGUAGE_MODEL), "--arch", name]
    if name not in (*ONE_HEAD, "roberta_flash", "roberta_flash_quad", "roberta_tnn"):
        words += ["--encoder-attention-heads" if encoder else "--decoder-attention-heads", "2"]
    return words


def train(data: str, name: str) -> None:
    """Ten updates."""
    metrics.reset()
    words = [data, *COMMON, *flags(name)]
    main(convert_namespace_to_omegaconf(options.parse_args_and_arch(options.get_training_parser(), words)))


if __name__ == "__main__":
    logging.basicConfig(format="| %(name)s | %(message)s", level=logging.INFO, stream=sys.stdout, force=True)
    for architecture in sys.argv[2:]:
        print(f"== {architecture}", flush=True)
        try:
            train(sys.argv[1], architecture)
        except Exception:
            traceback.print_exc(file=sys.stdout)
        sys.stdout.flush()
