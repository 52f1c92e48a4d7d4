"""Repairs of fairseq, and checks of its settings.

One wrapper for each function of fairseq's, in the module of its subject; each line of a wrapper is a named
repair or a check of `user_dir/checks`. A repair says what breaks, and since which version.

`trainer` applies `train_loop`, whose functions are there only once fairseq-train runs. `replacing`,
`stopping` and `diverged` replace nothing themselves: the others use them.
"""

from . import checkpoints, data, distributed, generation, libraries, literals, options, run_state, trainer

PARTS = (libraries, literals, options, data, generation, checkpoints, distributed, run_state, trainer)


def apply() -> None:
    """All of them; applying them twice changes nothing."""
    for part in PARTS:
        part.apply()
