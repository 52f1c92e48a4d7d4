"""When dropout acts."""

from fairseq.modules import FairseqDropout


def drops(dropout: FairseqDropout) -> bool:
    """Whether it sets anything to zero: in training, and in evaluation with `--retain-dropout`."""
    return dropout.p > 0 and (dropout.training or dropout.apply_during_inference)
