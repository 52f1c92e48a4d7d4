"""Any model of the registry, built of its name, a task and options."""

from typing import Any

from fairseq.models import MODEL_DATACLASS_REGISTRY, MODEL_REGISTRY, BaseFairseqModel


def build_model(arch: str, task: Any, **options: Any) -> BaseFairseqModel:
    """A model of the named architecture, whose other options have their defaults, in evaluation mode."""
    config = MODEL_DATACLASS_REGISTRY[arch]()
    for name, value in options.items():
        if not hasattr(config, name):
            raise AttributeError(f"{arch} has no option {name}")
        setattr(config, name, value)
    return MODEL_REGISTRY[arch].build_model(config, task).eval()
