"""Cases that one test goes through, where a test for each would take longer to collect than to run."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch

SEED = 1234
"""That every test begins with."""


@contextmanager
def case(*about: object) -> Iterator[None]:
    """Begin as a test of its own would; an error says in which case it happened."""
    torch.manual_seed(SEED)
    try:
        yield
    except Exception as error:
        error.add_note(f"in the case {', '.join(map(str, about))}")
        raise
