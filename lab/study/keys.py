"""The keys of each part of a study's YAML, and their types, which pydantic checks."""

from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, Strict, ValidationError, model_validator

from lab.errors import UserError, nearest

Text = Annotated[str, BeforeValidator(lambda given: str(given) if isinstance(given, int | float) else given)]
"""A text, or a number that is read as text."""
Words = Annotated[tuple[Text, ...], BeforeValidator(lambda given: as_list(given))]
"""One text, or a list of them."""
Count = Annotated[int, Strict(), Field(gt=0)]
Number = Annotated[float, Strict()]
Only = dict[Text, Words]
"""The choices of an axis that count."""


class Keys(BaseModel):
    """The keys of a part of a study's YAML; a key without a value counts as missing."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    @model_validator(mode="before")
    @classmethod
    def without_empty(cls, given: Any) -> Any:
        """Leave out keys that have no value."""
        if not isinstance(given, dict):
            return given
        return {str(key): value for key, value in given.items() if value is not None}


class StudyKeys(Keys):
    """The whole YAML; parts with their own keys are read one by one."""

    about: Text
    evaluate: Text
    axes: Annotated[dict[Text, Any], Field(min_length=1)]
    config: Text = ""
    data: Text = ""
    start: Text = ""
    settings: dict[Text, Any] = {}
    seeds: Count = 1
    checkpoint: Literal["last", "best"] = "last"
    keep: Literal["measured", "all"] = "measured"
    tables: list[Any] = []
    table: Any = None
    paper: Any = None
    baseline: Any = None
    claims: list[Any] = []
    plot: Any = None
    tune: Any = None
    best: Any = None
    prepare: Any = None
    asks: Text = ""
    answer: Text = ""
    notes: Text = ""
    extras: Annotated[bool, Strict()] = False


class ChoiceKeys(Keys):
    """What a choice has besides the settings of fairseq-train, see `Choice`."""

    label: Text = ""
    config: Text = ""
    seeds: Count | None = None
    on_request: bool = False


class TuneKeys(Keys):
    """Below `tune`."""

    axis: Text
    values: Words
    updates: Count
    by: Literal["valid_loss", "valid_accuracy"] = "valid_loss"
    bracket: Annotated[bool, Strict()] = False
    only: Only = {}


class BestKeys(Keys):
    """Below `best`."""

    axis: Text
    highest: Text = ""
    lowest: Text = ""


class PlotKeys(Keys):
    """Below `plot`."""

    asks: Text = ""
    curves: Literal["train", "valid"]
    methods: dict[str, str] = Field(default_factory=dict)
    by: Annotated[
        tuple[Literal["updates", "seconds"], ...], BeforeValidator(lambda given: as_list(given))
    ] = ()
    y: Text = ""
    factor: Number = 1.0
    log: bool = False
    baseline: Text = ""


class BaselineKeys(Keys):
    """A baseline."""

    name: Text
    found: dict[Text, Annotated[float, Strict()] | Annotated[str, Strict()]]
    margin: dict[Text, Number] = {}
    examples: Text = ""


class TableKeys(Keys):
    """A table."""

    title: Text = ""
    rows: Words = ()
    columns: Annotated[list[tuple[Text, Text, Text]], Field(min_length=1)]
    only: Only = {}
    paper: Any = None
    across: Text = ""
    average: Text = ""


class PaperKeys(Keys):
    """The column of a paper beside a table."""

    table: Text
    value: Any = None
    key: Words = ()
    rows: dict[Text, Text] = {}
    title: Text = "paper"
    average: Text = ""


class TestKeys(Keys):
    """The test of a claim: a kind with the figure and its rows, and a bound."""

    ratio: tuple[Text, Text, Text] | None = None
    difference: tuple[Text, Text, Text] | None = None
    lowest: tuple[Text, Text] | None = None
    highest: tuple[Text, Text] | None = None
    rank: Annotated[tuple[Text], BeforeValidator(lambda given: as_list(given))] | None = None
    at_most: Number | None = None
    at_least: Number | None = None
    within: Number | None = None
    among: Words = ()
    examples: Text = ""
    bootstrap: Annotated[bool, Strict()] = False


class ClaimedKeys(Keys):
    """The figures that a claim is about, in a paper's table."""

    table: Text
    value: Text
    rows: Words


class ClaimKeys(Keys):
    """A claim of a paper."""

    says: Text
    where: Text
    test: Any
    paper: Any = None
    only: Only = {}
    not_comparable: Text = ""


SomeKeys = TypeVar("SomeKeys", bound=Keys)
EXPECTED = {
    "int_type": "it must be a whole number of 1 or more",
    "greater_than": "it must be a whole number of 1 or more",
    "float_type": "it must be a number",
    "bool_type": "it must be true or false",
    "list_type": "write a list",
    "string_type": "write a text",
    "tuple_type": "write a list",
    "dict_type": "write keys and values",
    "model_type": "write keys and values",
}
"""The expected value, by pydantic's type of a mistake; other types keep pydantic's message."""


def validated(kind: type[SomeKeys], given: Any, where: str) -> SomeKeys:
    """The keys of a part of the YAML; UserError in a sentence, with the key's path, for a mistake."""
    try:
        return kind.model_validate(given)
    except ValidationError as error:
        mistakes = error.errors()
    first = next((one for one in mistakes if one["type"] == "extra_forbidden"), mistakes[0])
    place, found = ".".join(map(str, first["loc"])), first["input"]
    if first["type"] == "extra_forbidden":
        raise UserError(f"{where}: there is no key {place}{nearest(place, kind.model_fields)}")
    where = f"{where}: {place}" if place else where
    if first["type"] == "missing":
        raise UserError(f"{where} is missing; docs/studies.md describes it")
    if first["type"] == "literal_error":
        known = first["ctx"]["expected"].replace("'", "").replace(" or ", ", ").split(", ")
        raise UserError(f"{where} is {found!r}{nearest(found, known)}")
    expected = EXPECTED.get(first["type"], first["msg"][0].lower() + first["msg"][1:])
    raise UserError(f"{where} is {found!r:.80}; {expected}")


def as_list(given: Any) -> list[Any]:
    """The value of a key that takes one value or a list, as a list."""
    return given if isinstance(given, list) else [given]
