"""Sizes of the benchmarked models, and the flags that make fairseq build language models."""

from pipeline.methods import VANILLA, Size

SMALL = Size(layers=2, width=128, heads=4, vocabulary=4000)
BASE = Size(layers=6, width=512, heads=8, vocabulary=4000)
TINY = Size(layers=2, width=16, heads=2, vocabulary=100)
ROBERTA_BASE = Size(layers=12, width=768, heads=12, vocabulary=50_265)
ROBERTA_CPU = Size(layers=2, width=256, heads=4, vocabulary=1000)


def fairseq_flags(architecture: str, size: Size) -> list[str]:
    """The flags with which fairseq builds `architecture` at `size`, embeddings tied."""
    flags = {
        "--arch": architecture,
        "--decoder-layers": size.layers,
        "--decoder-embed-dim": size.width,
        "--decoder-attention-heads": size.heads,
        "--decoder-ffn-embed-dim": 4 * size.width,
        "--dropout": 0.1,
    }
    if architecture == VANILLA:
        # fairseq's defaults for these two are those of the base size, not the width.
        flags |= {"--decoder-input-dim": size.width, "--decoder-output-dim": size.width}
    words = [str(word) for flag in flags.items() for word in flag]
    return [*words, "--share-decoder-input-output-embed"]
