"""What the commands in this folder do; the shell files only find Python and start these modules."""

import logging
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

# Some of fairseq's tasks configure the root logger when they are imported, for debug messages on
# stderr, unless it is configured already. A user's terminal gets warnings only.
logging.basicConfig(level=logging.WARNING, format="%(levelname)s: %(message)s")
