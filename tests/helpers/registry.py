"""hydra's registry of configurations, which nothing changes once fairseq is imported."""

from hydra.core.config_store import ConfigStore


def share() -> None:
    """Keep hydra from copying the whole registry for each composition, which takes half of its time."""
    ConfigStore.__deepcopy__ = lambda self, memo: self
