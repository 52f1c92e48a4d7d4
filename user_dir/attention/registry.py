"""The names of the mechanisms, as layer plans and `build_attention` use them."""

from collections.abc import Callable
from dataclasses import fields

from causal_linear_attention import select_backend
from causal_linear_attention.selection import KERNELS

from ..errors import UserError, check_choice
from ..modules import choose_kernels
from .base import Attention
from .parts.limits import check_count, check_sizes, check_types

_REGISTRY: dict[str, type[Attention]] = {}


def register_attention(name: str) -> Callable[[type], type]:
    """Class decorator: `name` names the class in layer plans, options and `build_attention`."""

    def decorate(cls: type) -> type:
        if name in _REGISTRY and _REGISTRY[name].__qualname__ != cls.__qualname__:
            raise ValueError(f"attention {name!r} is registered already")
        _REGISTRY[name] = cls
        return cls

    return decorate


def attention_names(causal: bool | None = None) -> list[str]:
    """The registered names, sorted: all, or those with a causal (True) or bidirectional (False) form."""
    if causal is None:
        return sorted(_REGISTRY)
    return sorted(
        name for name, cls in _REGISTRY.items() if not (cls.bidirectional_only if causal else cls.causal_only)
    )


def attention_class(name: str) -> type[Attention]:
    """The class registered under `name`; raises UserError, listing the names, for an unknown one."""
    check_choice("unknown attention", name, attention_names())
    return _REGISTRY[name]


def build_attention(
    name: str,
    embed_dim: int,
    num_heads: int,
    *,
    causal: bool,
    dropout: float = 0.0,
    backend: str = "auto",
    max_positions: int | None = None,
    place: tuple[int, int] = (0, 1),
    **options: object,
) -> Attention:
    """One self-attention module.

    Args:
        name: a registered name, such as "norm".
        embed_dim: width D; num_heads must divide it.
        causal: a position sees itself and earlier ones only.
        dropout: on attention weights, for mechanisms that form weights.
        backend: of the linear product, see `causal_linear_attention`.
        max_positions: the longest sequence, in tokens, for mechanisms whose parameters depend on it.
        place: the number of the layer, from 0, and how many there are, for mechanisms that differ by layer.
        **options: fields of the mechanism's `Options`, such as `block_size` of "diag".

    Raises:
        UserError: for an unknown name, option or value (the message lists the known ones), and for
            the form (causal or bidirectional) that the mechanism lacks.
    """
    cls = attention_class(name)
    _check_form(name, cls, causal)
    try:
        select_backend(backend, KERNELS[backend].home if backend in KERNELS else "cpu")
    except ValueError as error:
        raise UserError(str(error)) from None
    _check_options(name, cls, options, max_positions)
    attention = cls.form(causal)(
        embed_dim,
        num_heads,
        causal=causal,
        dropout=dropout,
        backend=backend,
        options=cls.Options(**options),
        max_positions=max_positions,
        place=place,
    )
    choose_kernels(attention, backend)
    return attention


def _check_form(name: str, cls: type[Attention], causal: bool) -> None:
    if causal and cls.bidirectional_only:
        raise UserError(
            f"{name!r} attention has no causal form and cannot be in a language model; "
            f"choose one of {', '.join(attention_names(causal=True))}"
        )
    if not causal and cls.causal_only:
        raise UserError(
            f"{name!r} attention has no bidirectional form and cannot be in an encoder; "
            f"choose one of {', '.join(attention_names(causal=False))}"
        )


def _check_options(
    name: str, cls: type[Attention], options: dict[str, object], max_positions: int | None
) -> None:
    known = [f.name for f in fields(cls.Options)]
    unknown = sorted(set(options) - set(known))
    if unknown:
        raise UserError(
            f"attention {name!r} has no option {unknown[0]!r}; "
            + (f"its options are {', '.join(known)}" if known else "it has no options")
        )
    check_types(name, cls.Options, options)
    check_sizes(name, cls.Options, options, max_positions)
    if max_positions is not None:
        check_count("the longest sequence of the model (max_positions)", max_positions)
