"""Attentions of a user's own, in folders outside this project; CONTRIBUTING.md shows one."""

import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

from conventions import OWN_ATTENTIONS, own_attention_files

from ..errors import UserError
from .registry import attention_names


def load_own() -> None:
    """Import the files that the variable `OWN_ATTENTIONS` names, each once; NAME.py registers NAME.

    Raises UserError for a file that cannot be imported, or registers no attention of its name.
    """
    for path in own_attention_files():
        if (name := f"own_attention_{path.stem}") not in sys.modules:
            try:
                _import(name, path)
            except BaseException:
                del sys.modules[name]
                raise


def _import(name: str, path: Path) -> None:
    spec = spec_from_file_location(name, path)
    module = sys.modules[name] = module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        raise UserError(
            f"{OWN_ATTENTIONS}: {path} cannot be imported: {type(error).__name__}: "
            f"{' '.join(str(error).split())}"
        ) from error
    if path.stem not in attention_names():
        raise UserError(
            f"{OWN_ATTENTIONS}: {path} registers no attention {path.stem!r}; name the file after the "
            "attention, and start the names of other files with _"
        )
