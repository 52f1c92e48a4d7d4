"""Any model of the registry, built of its name, a task and options; comparing the gradients of two."""

from typing import Any

import torch
from fairseq.models import MODEL_DATACLASS_REGISTRY, MODEL_REGISTRY, BaseFairseqModel


def build_model(arch: str, task: Any, **options: Any) -> BaseFairseqModel:
    """A model of the named architecture, whose other options have their defaults, in evaluation mode."""
    config = MODEL_DATACLASS_REGISTRY[arch]()
    for name, value in options.items():
        if not hasattr(config, name):
            raise AttributeError(f"{arch} has no option {name}")
        setattr(config, name, value)
    return MODEL_REGISTRY[arch].build_model(config, task).eval()


def assert_all_train(model: torch.nn.Module) -> None:
    """Every trained parameter has a finite gradient other than zero."""
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            assert parameter.grad is not None and parameter.grad.isfinite().all(), name
            assert parameter.grad.any(), name


def assert_same_gradients(one: torch.nn.Module, other: torch.nn.Module, **tolerance: float) -> None:
    """The same parameters have gradients, and these are equal."""
    for x, y in zip(one.parameters(), other.parameters(), strict=True):
        assert (x.grad is None) == (y.grad is None)
        if x.grad is not None:
            torch.testing.assert_close(x.grad, y.grad, **tolerance)
