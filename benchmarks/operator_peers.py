"""What the operator is compared with: every installed implementation of causal linear attention, and the
softmax attention and quadratic product it replaces."""

import importlib.util
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import torch
from torch import Tensor

from benchmarks.operator_tables import FLA, QUADRATIC, SOFTMAX
from causal_linear_attention import causal_linear_attention, select_backend
from pipeline.errors import UserError

Function = Callable[[Tensor, Tensor, Tensor], Tensor]
# Above these lengths a call takes seconds on a CPU, and more memory than a GPU has.
LIMITS = {"cpu": {SOFTMAX: 8192, QUADRATIC: 2048}, "cuda": {QUADRATIC: 4096}}
CAUSAL_PRODUCT = Path("fast_transformers", "causal_product")


def ours(device: str, dtype: torch.dtype = torch.float32) -> str:
    """The name of the compiled kernels' rows, or of PyTorch's without kernels."""
    return f"ours, {select_backend('auto', device, dtype)}"


def implementations(
    device: str, dtype: torch.dtype, builds: dict[str, Path | None], dim: int = 1, quadratic: bool = True
) -> dict[str, Function]:
    """Name to function of q, k, v of `dim` columns, in the layout of `own_layout`.

    `builds` are folders of fast-transformers; None is the installed one. Without `quadratic`, only what takes
    linear time.
    """
    found = {}
    for name in _backends(device, dtype, dim):
        found[f"ours, {name}"] = lambda q, k, v, name=name: causal_linear_attention(q, k, v, backend=name)
    if dtype == torch.float32:
        for name, folder in builds.items():
            if (function := fast_transformers(folder)) is not None:
                found[name] = function
    if device == "cuda" and (function := flash_linear_attention()) is not None:
        found[FLA] = function
    if not quadratic:
        return found
    found[SOFTMAX] = lambda q, k, v: torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
    found[QUADRATIC] = lambda q, k, v: (q @ k.transpose(-2, -1)).tril() @ v
    return found


def _backends(device: str, dtype: torch.dtype, dim: int) -> list[str]:
    """Ours that run there, the one that "auto" takes first."""
    names = [select_backend("auto", device, dtype, dim)]
    for name in ("cuda", "triton") if device == "cuda" else ():
        with suppress(ValueError):  # it says why that one does not run
            names.append(select_backend(name, device, dtype, dim))
    return list(dict.fromkeys([*names, "torch"]))


def check_build(folder: Path) -> None:
    """UserError unless `folder` may hold a build of fast-transformers."""
    if not (init := folder / CAUSAL_PRODUCT / "__init__.py").is_file():
        raise UserError(
            f"{folder} holds no fast-transformers (there is no {init}); name a folder with a build"
        )


def fast_transformers(folder: Path | None) -> Function | None:
    """fast-transformers' causal product, as installed (None if it is not) or from a folder."""
    if folder is None:
        try:
            return importlib.import_module("fast_transformers.causal_product").causal_dot_product
        except ImportError:
            return None
    # A name of its own: a second module of the same name would run the first one's compiled code.
    package = folder.resolve() / CAUSAL_PRODUCT
    name, init = f"fast_transformers_{len(sys.modules)}", package / "__init__.py"
    spec = importlib.util.spec_from_file_location(name, init, submodule_search_locations=[str(package)])
    sys.modules[name] = module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except (ImportError, OSError) as error:
        raise UserError(f"{folder} holds no fast-transformers that can be imported ({error})") from None
    return module.causal_dot_product


def flash_linear_attention() -> Function | None:
    """flash-linear-attention's chunked kernel of `(B, N, H, D)`, None if it is not installed."""
    try:
        from fla.ops.linear_attn import chunk_linear_attn
    except ImportError:
        return None
    return lambda q, k, v: chunk_linear_attn(q, k, v, scale=1.0, normalize=False)[0]


def own_layout(name: str, x: Tensor) -> Tensor:
    """`x: (B, H, N, D)` as the implementation wants it: fla would copy what is not `(B, N, H, D)` first."""
    return x.transpose(1, 2).contiguous() if name == FLA else x
