"""PTX text to instructions with operands. It understands nvcc's output for the kernels, not all of PTX.

Registers and parameters have module-wide numbers and names, since no function calls itself: a call becomes
copies of the arguments, a jump, and copies of the results.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Register:
    """One register of every thread, by its number in the module."""

    number: int


@dataclass(frozen=True)
class Negated:
    """A predicate that is read inverted."""

    register: Register


@dataclass(frozen=True)
class Immediate:
    """A constant's bits; negative ones in two's complement of any size."""

    bits: int


@dataclass(frozen=True)
class Special:
    """`%tid.x` and the like."""

    name: str


@dataclass(frozen=True)
class Symbol:
    """A parameter or shared memory, whose address is meant."""

    name: str


@dataclass(frozen=True)
class Address:
    """The text inside square brackets."""

    base: Register | Symbol
    offset: int


Operand = Register | Negated | Immediate | Special | Symbol | Address | tuple


@dataclass(frozen=True)
class Instruction:
    """One instruction; `parts` are the parts of its opcode, such as `ld.shared.v4.u32`."""

    parts: tuple[str, ...]
    operands: tuple[Operand, ...]
    guard: Register | Negated | None = None
    target: str = ""  # of a branch or a call
    text: str = ""

    @property
    def name(self) -> str:
        return self.parts[0]

    @property
    def type(self) -> str:
        return self.parts[-1]


@dataclass
class Module:
    """Kernels and functions in one list of instructions.

    Attributes:
        labels: the place of each label and of each function's first instruction.
        registers: the type of each register, by its number.
        parameters: the bytes of each parameter.
        entries: the name of each kernel's parameter.
    """

    instructions: list[Instruction] = field(default_factory=list)
    labels: dict[str, int] = field(default_factory=dict)
    registers: list[str] = field(default_factory=list)
    parameters: dict[str, int] = field(default_factory=dict)
    entries: dict[str, str] = field(default_factory=dict)

    def register(self, kind: str) -> Register:
        self.registers.append(kind)
        return Register(len(self.registers) - 1)


_FUNCTION = re.compile(r"\.(entry|func)\s+(?:\(([^)]*)\)\s*)?(\w+)\s*\(([^)]*)\)[^;{]*([;{])")
_PARAMETER = re.compile(r"\.param\s+(?:\.align\s+\d+\s+)?\.[busf](\d+)\s+(\w+)(?:\[(\d+)\])?")
_STATEMENT = re.compile(r"\s*(?:(\$\w+):|([{}])|([^;{}][^;]*);)")


def parse(text: str) -> Module:
    """All functions of a PTX file."""
    text = re.sub(r"//[^\n]*", "", text)
    module = Module()
    for found in _FUNCTION.finditer(text):
        kind, results, name, parameters, opening = found.groups()
        if opening == "{":
            _Function(module, name, kind == "entry").parse(text, found.end(), results or "", parameters)
    return module


def _parameters(text: str) -> Iterator[tuple[str, int]]:
    for bits, name, count in _PARAMETER.findall(text):
        yield name, int(bits) // 8 * int(count or 1)


def _split(text: str) -> list[str]:
    """At commas outside brackets."""
    parts, depth, start = [], 0, 0
    for at, c in enumerate(text):
        depth += (c in "{[(") - (c in "}])")
        if c == "," and not depth:
            parts.append(text[start:at].strip())
            start = at + 1
    return [x for x in [*parts, text[start:].strip()] if x]


class _Function:
    """The parser's state in one function.

    `scopes` hold what each pair of braces declares: registers by their names, and types by the prefix of
    numbered names.
    """

    def __init__(self, module: Module, name: str, entry: bool):
        self.module, self.name, self.entry = module, name, entry
        self.scopes: list[dict[str, object]] = [{}]
        self.numbered: dict[str, Register] = {}
        self.blocks = 0

    def parse(self, text: str, at: int, results: str, parameters: str) -> None:
        module = self.module
        module.labels[self.name] = len(module.instructions)
        for name, size in _parameters(parameters):
            self._declare_parameter(name, size, name)
            if self.entry:
                module.entries[self.name] = name
        for name, size in _parameters(results):
            self._declare_parameter(name, size, f"{self.name} {name}")
        while self.scopes:
            found = _STATEMENT.match(text, at)
            if found is None:
                raise ValueError(f"not understood in {self.name}: {text[at : at + 80]!r}")
            at = found.end()
            label, brace, statement = found.groups()
            if label:
                module.labels[label] = len(module.instructions)
            elif brace == "{":
                self.scopes.append({})
            elif brace == "}":
                self.scopes.pop()
            else:
                self._statement(" ".join(statement.split()))

    def _statement(self, text: str) -> None:
        if text.startswith(".reg"):
            _, kind, names = text.split(None, 2)
            for name in _split(names):
                self._declare_register(name, kind.removeprefix("."))
        elif text.startswith(".param"):
            for name, size in _parameters(text):
                self.blocks += 1
                self._declare_parameter(name, size, f"{self.name} {name} {self.blocks}")
        elif not text.startswith("."):
            self._instruction(text)

    def _declare_register(self, name: str, kind: str) -> None:
        prefix, bracket, _ = name.partition("<")
        self.scopes[-1][name.removesuffix(">") if not bracket else prefix] = (
            kind if bracket else self.module.register(kind)
        )

    def _declare_parameter(self, name: str, size: int, unique: str) -> None:
        self.module.parameters[unique] = size
        self.scopes[-1][name] = Symbol(unique)

    def _instruction(self, text: str) -> None:
        guard = None
        if text.startswith("@"):
            word, text = text[1:].split(None, 1)
            guard = self._operand(word)
        opcode, _, rest = text.partition(" ")
        parts, words = tuple(opcode.split(".")), _split(rest)
        if parts[0] == "call":
            return self._call(words, text)
        if parts[0] == "bra":
            return self._append(parts, (), guard, words[0], text)
        if parts[0] == "ret":
            parts, target = ("exit" if self.entry else "ret",), self.name
            return self._append(parts, (), guard, target, text)
        self._append(parts, tuple(self._operand(x) for x in words), guard, "", text)

    def _append(self, parts, operands, guard=None, target="", text="") -> None:
        self.module.instructions.append(Instruction(parts, operands, guard, target, text))

    def _call(self, words: list[str], text: str) -> None:
        """`(result), function, (arguments)`, the first of which there may not be."""
        results = _split(words.pop(0)[1:-1]) if words[0].startswith("(") else []
        function, arguments = words[0], _split(words[1][1:-1]) if len(words) > 1 else []
        for i, argument in enumerate(arguments):
            operands = (Symbol(f"{function}_param_{i}"), self._operand(argument))
            self._append(("copy",), operands, text=text)
        self._append(("call",), (), target=function, text=text)
        for result in results:
            self._append(("copy",), (self._operand(result), Symbol(f"{function} func_retval0")), text=text)

    def _operand(self, text: str) -> Operand:
        if text[0] == "{":
            return tuple(self._operand(x) for x in _split(text[1:-1]))
        if "|" in text:
            return tuple(self._operand(x) for x in text.split("|"))
        if text[0] == "!":
            return Negated(self._operand(text[1:]))
        if text[0] == "[":
            base, _, offset = text[1:-1].partition("+")
            return Address(self._operand(base), int(offset or 0))
        if text[:2] in ("0f", "0d"):
            return Immediate(int(text[2:], 16))
        if text[0].isdigit() or text[0] == "-":
            return Immediate(int(text, 0))
        return self._name(text)

    def _name(self, name: str) -> Register | Special | Symbol:
        for scope in reversed(self.scopes):
            if name in scope:
                return scope[name]
        prefix = name.rstrip("0123456789")
        for scope in reversed(self.scopes):
            if prefix in scope:
                if name not in self.numbered:
                    self.numbered[name] = self.module.register(scope[prefix])
                return self.numbered[name]
        return Special(name) if name.startswith("%") else Symbol(name)
