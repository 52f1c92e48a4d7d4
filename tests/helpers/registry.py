"""hydra's composition of a configuration, without what takes half of a tiny training's time."""

import copy
import inspect
from functools import partial
from types import SimpleNamespace
from typing import Any

from hydra._internal import utils
from hydra.core.config_store import ConfigStore
from hydra.core.override_parser.overrides_parser import OverridesParser

_parse = OverridesParser.parse_rule
_parsed: dict[tuple[str, str], Any] = {}


def share() -> None:
    """Parse a word once, copy no registry (nothing changes it once fairseq is imported), read no sources."""
    ConfigStore.__deepcopy__ = lambda self, memo: self
    OverridesParser.parse_rule = _parse_once
    utils.inspect = SimpleNamespace(**{**vars(inspect), "stack": partial(inspect.stack, 0)})


def _parse_once(parser: OverridesParser, word: str, rule: str) -> Any:
    if (word, rule) not in _parsed:
        _parsed[word, rule] = _parse(parser, word, rule)
    return copy.copy(_parsed[word, rule])
