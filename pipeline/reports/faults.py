"""What fault_check.sh found, as one paragraph of the README."""

import textwrap
from typing import Any

WIDTH = 118  # of the prose around it


def survivors(record: dict[str, Any], machine: str) -> str:
    """How many faults of each kind training, studies and data preparation survived, and on which machine."""
    kinds = (f"{kind}, {found['survived']} of {found['broken']}" for kind, found in record["faults"].items())
    return textwrap.fill(f"Survived: {'; '.join(kinds)}. ({machine})", WIDTH)
