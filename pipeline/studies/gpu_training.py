"""A training of gpu_check.sh: scripts/train_lm.sh, on random words where there are no DATA yet."""

import sys
from pathlib import Path

from pipeline.data.indexed_rows import write_rows
from pipeline.training import commands

SPECIAL = 4  # <s>, <pad>, </s>, <unk> lead every dictionary of fairseq's
ROW = 1000


def write_random_words(dest: Path, words: int, tokens: int) -> None:
    """A prepared corpus drawn from a seed, with words about as frequent as a language's (Zipf)."""
    import torch

    folder = dest.with_name(f"{dest.name}.part")
    folder.mkdir(parents=True, exist_ok=True)
    generator = torch.Generator().manual_seed(1)
    # The rank r of a word has probability 1 / r: the logarithm of r is uniform.
    ranks = torch.rand(tokens, generator=generator).mul_(torch.tensor(float(words)).log()).exp_()
    numbers = ranks.int().clamp_(1, words) + (SPECIAL - 1)
    lines = "".join(f"word{number} 1\n" for number in range(words))
    (folder / "dict.txt").write_text(lines, encoding="utf-8")
    write_rows(folder / "train", numbers.split(ROW), words + SPECIAL)
    folder.rename(dest)


def main() -> None:
    """`--words N --tokens N CONFIG DATA ...`, the rest as train_lm.sh takes it."""
    _, _, words, _, tokens, config, data, *rest = sys.argv
    if not Path(data).exists():
        write_random_words(Path(data), int(words), int(tokens))
    sys.argv = ["scripts/train_lm.sh", config, data, *rest]
    commands.main()
