"""The six tasks as published: classes, lengths, sizes, and where their files come from."""

from dataclasses import dataclass, field

from pipeline.data.downloads import CORPORA
from pipeline.errors import UserError

SKYFORMER = "skyformer"
STATE_SPACE = "state-space"
BOTH = "both"
PIPELINES = (SKYFORMER, STATE_SPACE)


def _origin(corpus: str) -> str:
    [(name, file)] = CORPORA[corpus].files.items()
    return f"{name} ({file.url})"


LRA_RELEASE = f"the benchmark's archive, {_origin('lra')}"


class MissingFiles(UserError):
    """The source holds no files of a task, or not all of them."""


@dataclass(frozen=True)
class LraTask:
    """One task; `sizes` counts the published examples of train, valid and test."""

    name: str
    classes: tuple[str, ...]
    length: int
    """The most positions a row may have, in Skyformer's pipeline."""
    sizes: dict[str, int]
    inputs: tuple[str, ...]
    archives: tuple[str, ...]
    """Patterns of the names of archives that hold it, for a folder of archives."""
    origin: str
    """Where the files come from, in words."""
    generated: bool = False
    """Whether its data can be generated."""
    side: int = 0
    """Pixels of a row of the image; 0 for tokens."""
    lengths: dict[str, int] = field(default_factory=dict)
    """The length where a pipeline has another one."""

    @property
    def is_image(self) -> bool:
        """Whether the input is pixels."""
        return bool(self.side)

    def split_sizes(self, count: int) -> dict[str, int]:
        """How many of `count` examples go to train, valid and test, in the published proportions."""
        total = sum(self.sizes.values())
        valid, test = (count * self.sizes[split] // total for split in ("valid", "test"))
        return {"train": count - valid - test, "valid": valid, "test": test}


DIGITS = tuple(str(digit) for digit in range(10))
CIFAR_CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
PATHFINDER_SIZES = {"train": 160_000, "valid": 20_000, "test": 20_000}


def _pathfinder(name: str, side: int) -> LraTask:
    return LraTask(
        name=name,
        classes=("different contours", "same contour"),
        length=side * side,
        sizes=PATHFINDER_SIZES,
        inputs=("pixels",),
        archives=("lra_release*gz", f"pathfinder{side}*.tar.gz"),
        origin=f"{LRA_RELEASE}, folder pathfinder{side}/curv_contour_length_14",
        generated=True,
        side=side,
    )


TASKS = {
    task.name: task
    for task in (
        LraTask(
            name="listops",
            classes=DIGITS,
            length=2_000,
            sizes={"train": 96_000, "valid": 2_000, "test": 2_000},
            inputs=("input0",),
            archives=("lra_release*gz", "listops-1000*.tar.gz"),
            origin=f"{LRA_RELEASE}, folder listops-1000",
            generated=True,
        ),
        LraTask(
            name="text",
            classes=("neg", "pos"),
            length=4_000,
            sizes={"train": 25_000, "valid": 0, "test": 25_000},
            inputs=("input0",),
            archives=("aclImdb*.tar.gz",),
            origin=_origin("imdb"),
            lengths={STATE_SPACE: 4_096},
        ),
        LraTask(
            name="retrieval",
            classes=("no citation", "citation"),
            length=4_000,
            sizes={"train": 147_086, "valid": 18_090, "test": 17_437},
            inputs=("input0", "input1"),
            archives=("lra_release*gz", "retrieval*.tar.gz"),
            origin=f"{LRA_RELEASE}, folder tsv_data",
        ),
        LraTask(
            name="image",
            classes=CIFAR_CLASSES,
            length=1_024,
            sizes={"train": 45_000, "valid": 5_000, "test": 10_000},
            inputs=("pixels",),
            archives=("cifar-10-binary*.tar.gz",),
            origin=_origin("cifar-10"),
            side=32,
        ),
        _pathfinder("pathfinder", 32),
        _pathfinder("path-x", 128),
    )
}

KNOWN_ARCHIVES = {file.sha256 for corpus in ("imdb", "cifar-10") for file in CORPORA[corpus].files.values()}
"""sha256 of the originals, where it is known."""


def lra_tasks(name: str) -> list[LraTask]:
    """The task of that name, or all of them for "all"; UserError lists the names."""
    if name == "all":
        return list(TASKS.values())
    if name not in TASKS:
        raise UserError(f"there is no task {name}; choose one of {', '.join(TASKS)}, all")
    return [TASKS[name]]
