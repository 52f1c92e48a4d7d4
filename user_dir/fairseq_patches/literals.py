"""Values of fairseq's options that are written as Python: numbers, lists and arithmetic, but not programs."""

import ast
import sys
from typing import Any

from ..errors import UserError

ALLOWED = (
    ast.Expression,
    ast.Constant,
    ast.Tuple,
    ast.List,
    ast.Dict,
    ast.Load,
    ast.UnaryOp,
    ast.UAdd,
    ast.USub,
    ast.BinOp,
    ast.Add,
    ast.Sub,
    ast.Mult,
    ast.Div,
    ast.Pow,
)


def apply() -> None:
    """Shadow `eval` in every module of fairseq: it runs the text of options such as --adam-betas and --lr.

    They may come from a study's YAML or a checkpoint of somebody else's.
    """
    for name, module in list(sys.modules.items()):
        if name.partition(".")[0] == "fairseq":
            vars(module)["eval"] = literal


def literal(text: str) -> Any:
    """The value in `text`, such as "(0.9, 0.98)" or "[(512, 3)] * 20"; UserError for a program."""
    try:
        tree = ast.parse(text.strip(), mode="eval")
        if all(isinstance(node, ALLOWED) for node in ast.walk(tree)):
            return eval(compile(tree, "<option>", "eval"), {"__builtins__": {}})
    except (SyntaxError, TypeError, ValueError, ArithmeticError, RecursionError):
        pass
    raise UserError(f"{text!r} is not a value; write a number, or several such as (0.9, 0.98)")
