"""Where an evaluation writes the result of each split."""

from argparse import Namespace
from collections.abc import Iterable
from pathlib import Path

from pipeline.errors import UserError
from pipeline.outputs import Ours, check_output


def result_files(
    options: Namespace, checkpoint: Path, ours: Ours, ending: str = ".json", beside: Iterable[str] = ()
) -> dict[str, Path]:
    """By split the file of its result: --out, or <checkpoint>.<split> with `ending`.

    Raises UserError for one that cannot be written, or that holds something else than a result of this
    command (`ours`).
    """
    if options.out and len(options.splits) > 1:
        raise UserError("--out names one file, but --split several splits; leave --out out")
    files = {split: options.out or checkpoint.with_suffix(f".{split}{ending}") for split in options.splits}
    for out in files.values():
        check_output(out, ours, [checkpoint], beside)
    return files
