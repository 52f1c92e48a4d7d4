"""hydra's composition of a configuration, without the part that takes half of a tiny training's time."""

import copy
import inspect
import sys
from dataclasses import astuple, replace
from types import FrameType, SimpleNamespace
from typing import Any

from hydra._internal import config_loader_impl, utils
from hydra._internal.config_loader_impl import ConfigLoaderImpl
from hydra._internal.defaults_list import DefaultsList, ResultDefault
from hydra.core.config_store import ConfigStore
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from omegaconf import DictConfig

FAIRSEQ = ("pkg://hydra.conf", "structured://")
"""Where hydra finds fairseq's settings, besides fairseq's own folder."""

_parse = OverridesParser.parse_rule
_list = config_loader_impl.create_defaults_list
_compose = ConfigLoaderImpl._compose_config_from_defaults_list
_store = ConfigStore.store
_parsed: dict[tuple[str, str], Any] = {}
_listed: dict[tuple[str, ...], DefaultsList] = {}
_composed: dict[tuple[Any, ...], DictConfig] = {}


def share() -> None:
    """Parse a word once, compose the defaults of the same choices once, copy no registry, read no sources."""
    ConfigStore.__deepcopy__ = lambda self, memo: self  # nothing changes it once fairseq is imported
    ConfigStore.store = _store_and_forget
    OverridesParser.parse_rule = _parse_once
    config_loader_impl.create_defaults_list = _list_once
    ConfigLoaderImpl._compose_config_from_defaults_list = _compose_once
    utils.inspect = SimpleNamespace(**{**vars(inspect), "stack": _stack})


def _parse_once(parser: OverridesParser, word: str, rule: str) -> Any:
    if (word, rule) not in _parsed:
        _parsed[word, rule] = _parse(parser, word, rule)
    return copy.copy(_parsed[word, rule])


def _store_and_forget(self: ConfigStore, *args: Any, **options: Any) -> None:
    _listed.clear()
    _composed.clear()
    _store(self, *args, **options)


def _list_once(repo: Any, config_name: str, overrides_list: list[Override], **options: Any) -> DefaultsList:
    """The names of the defaults, which values (`group.name=value`) do not decide."""
    chosen = [x for x in overrides_list if "." not in x.key_or_group]
    if not _of_fairseq(repo) or any(x.is_sweep_override() for x in overrides_list):
        return _list(repo, config_name, overrides_list, **options)
    key = (config_name, str(options), *[x.input_line for x in chosen])
    if key not in _listed:
        _listed[key] = _list(repo, config_name, chosen, **options)
    values = {x.input_line for x in _listed[key].config_overrides}
    kept = [x for x in overrides_list if "." in x.key_or_group or x.input_line in values]
    return replace(_listed[key], config_overrides=kept)


def _compose_once(loader: ConfigLoaderImpl, defaults: list[ResultDefault], repo: Any) -> DictConfig:
    if not _of_fairseq(repo):
        return _compose(loader, defaults, repo)
    key = tuple(map(astuple, defaults))
    if key not in _composed:
        _composed[key] = _compose(loader, defaults, repo)
    return copy.deepcopy(_composed[key])


def _of_fairseq(repo: Any) -> bool:
    """Whether nothing is read from a folder that a test may change."""
    return all(x.full_path() in FAIRSEQ or x.path.endswith("fairseq/config") for x in repo.get_sources())


def _stack() -> list[inspect.FrameInfo]:
    """`inspect.stack`, without sources and modules, for which it looks in all files."""
    frames: list[inspect.FrameInfo] = []
    frame: FrameType | None = sys._getframe(1)
    while frame:
        code = frame.f_code
        frames.append(inspect.FrameInfo(frame, code.co_filename, frame.f_lineno, code.co_name, None, None))
        frame = frame.f_back
    return frames
