"""Names and limits that the command line of scripts/analyse.sh and its subcommands share."""

LONGEST = 2048
"""Tokens of a sequence, unless --force is given."""
THEORY = (
    "score-gradients",
    "bounds",
    "temperature",
    "kernels",
    "softmax-lognormal",
    "sums-of-lognormals",
    "densities",
    "moment-matching",
)
"""Figures that need no model."""
