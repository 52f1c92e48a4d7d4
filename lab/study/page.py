"""The page of a study: question, answer, tables with the papers' rows, verdicts, pictures, notes."""

import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory

from lab.errors import MALFORMED, UserError
from lab.files import RESULTS, is_generated, marked, renewed, run_lock, shown_path
from lab.methods import performer_note
from lab.publish.tables import grouped, markdown_table, sessions_sentence
from lab.store import STORE, record_path, stored
from lab.study.answer import write_answer, write_notes
from lab.study.groups import groups_of, title_of
from lab.study.pictures import Picture, extras_of, pictures_of, section_of
from lab.study.records import OLDER, best_note, gather, named_study, read_files
from lab.study.schema import STUDIES, Record, Study
from lab.study.shown import shown_records
from lab.study.table import NONE, verdicts, write_table

PAGE = "README.md"
SECONDS_TO_WRITE = 60
"""How long to wait for another process that publishes into the folder."""


def write_group(
    study: Study, name: tuple[str, ...], records: Sequence[Record], pictures: Iterable[str] = ()
) -> str:
    """Tables, verdicts, pictures and notes of one group."""
    heading = [f"## {title_of(study, name)}"] if name else []
    tables = [write_table(spec, records, study.baselines) for spec in study.tables if spec.rows_of(records)]
    extra = extras_of(study).tables(section_of(study, records))
    rows = [
        [one.says, one.where, found.paper, found.outcome, found.effect]
        for one, found in verdicts(study, records)
    ]
    header = ["claim of the paper", "where", "paper", "verdict", "here"]
    claims = markdown_table(header, rows, figures=False) if rows else ""
    methods = {name for record in records for name in record["cell"].values() if isinstance(name, str)}
    notes = [
        write_notes(study, records),
        best_note(study.best, records),
        *performer_note(methods, any("--performer-paper" in one["own_flags"] for one in records)),
        sessions_sentence(records),
    ]
    results = [*tables, note_of_older(records), *extra, claims, tuned_table(study, records)]
    return "\n\n".join(filter(None, [*heading, *results, *pictures, *notes]))


def tuned_table(study: Study, records: Sequence[Record]) -> str:
    """The values that tuning tried for each row and those it chose; empty without tuning."""
    tuned = [record for record in records if "tuned" in record]
    if not tuned:
        return ""
    one, spec, lines, runs = tuned[0]["tuned"], study.tables[0].whole(), [], 0
    values = list(dict.fromkeys(value for record in tuned for value in record["tuned"]["tried"]))
    with suppress(ValueError):  # words have no order
        values.sort(key=float)
    for key, group in spec.rows_of(tuned).items():
        found = group[0]["tuned"]
        scores = [
            NONE if score is None else f"{score:.4g}{' *' if value == found['chosen'] else ''}"
            for value, score in ((value, found["tried"].get(value)) for value in values)
        ]
        runs += len(found["tried"])
        lines.append([spec.label(key), *scores])
    updates = f" of {one['updates']:,} updates" if "updates" in one else ""
    title = (
        f"Choosing {one['setting']} by {one['by']} in {runs} runs{updates} of the first seed; "
        '"*": the value that was taken.'
    )
    return f"{title}\n\n{markdown_table(['', *values], lines)}"


def write_page(
    study: Study, records: Sequence[Record], pictures: Iterable["Picture"] = (), closing: str = ""
) -> str:
    """The whole page in Markdown, with links to its pictures; `closing` is its last line."""
    links = grouped(pictures, lambda picture: picture.group)
    parts = [
        write_group(study, name, group, [picture.link for picture in links.get(name, ())])
        for name, group in groups_of(study, records).items()
    ]
    opening = list(filter(None, [f"# {study.about}", write_answer(study, records)]))
    return marked("\n\n".join([*opening, *parts, *filter(None, [closing])]) + "\n")


def how_to_train(study: Study, out: Path) -> str:
    """The last line of a committed page; empty for a study of the user's own, and in another folder."""
    if study.path.parent != STUDIES or out.absolute() != RESULTS / study.name:
        return ""
    how_long = "[how long](../../docs/studies.md#how-long-a-study-takes)"
    return f"To train these cells yourself: `scripts/study.sh {study.name}` ({how_long})."


def note_of_older(records: Sequence[Record]) -> str:
    """A sentence that names the rows of earlier settings; empty if there are none."""
    older = grouped([one for one in records if OLDER in one], lambda one: str(record_path(one).parent))
    if not older:
        return ""
    rows = ", ".join(sorted(older))
    return f"Measured with earlier settings of this study, and counted in no verdict: {rows}."


@contextmanager
def explained_records(study: Study, records: Sequence[Record], out: Path) -> Iterator[None]:
    """UserError where a page or its pictures miss a figure; it names the record, else the study's YAML."""
    try:
        yield
    except UserError:
        raise
    except MALFORMED as error:
        said = f"{type(error).__name__}: {error}"
        bad = [record for record in records if not _makes_a_page(study, record)]
        first = shown_path(out / record_path((bad or records)[0]))
        if len(bad) == len(records) or not bad:
            raise UserError(
                f"{study.path}: the page cannot be made of its records, such as {first} ({said}); check "
                "baseline, plot and extras, or move the records away to measure their cells again"
            ) from error
        raise UserError(
            f"{first} lacks figures that the page shows, or has them in another form ({said}); move it away "
            "to measure its cell again"
        ) from error


def _makes_a_page(study: Study, record: Record) -> bool:
    """Whether a page and pictures can be made of a record alone."""
    try:
        write_page(study, [record])
        with TemporaryDirectory() as folder:
            for picture in pictures_of(study, [record], Path(folder)):
                picture.draw(picture.path)
    except MALFORMED:
        return False
    return True


def publish(study: Study, out: Path, check: bool = False) -> list[Path]:
    """Bring the page, the pictures and the store in `out` up to date with the records; returns stale files.

    With `check`, it only reports them. Processes publish into a folder one after another.
    """
    stale = _publish(study, out, check=True)
    if check or not stale:
        return stale
    with run_lock(out, SECONDS_TO_WRITE, "--out"):
        return _publish(study, out, check=False)


def _publish(study: Study, out: Path, check: bool) -> list[Path]:
    gathered = gather(out, study, check) if is_published(out) else []
    records = shown_records(study, out)
    if not records:
        return []
    with explained_records(study, records, out):
        pictures = pictures_of(study, records, out)
        check_replaceable(study, [out / PAGE, *(picture.path for picture in pictures)])
        text = write_page(study, records, pictures, how_to_train(study, out))
        old = [picture for picture in pictures if not picture.is_current()]
        if not check:
            for picture in old:
                picture.draw(picture.path)
        return [*renewed({out / PAGE: text}, check), *(picture.path for picture in old), *gathered]


def is_published(out: Path) -> bool:
    """Whether the records of a folder belong in a store: it has one, or is one of the repository's."""
    return (out / STORE).is_file() or out.absolute().is_relative_to(RESULTS)


def check_replaceable(study: Study, paths: Iterable[Path]) -> None:
    """UserError where the page of another study, or a file that was not generated, would be replaced."""
    for path in paths:
        if path.name == PAGE and (other := other_study(study, path)):
            raise UserError(
                f"{path} is the page of the study {other}; choose another --out, or if {other}.yaml was "
                "renamed, give it that name again"
            )
        if os.path.lexists(path) and not is_generated(path):
            raise UserError(
                f"{path} was not written by scripts/study.sh, which needs that name; move it "
                "away, or choose another --out"
            )


def other_study(study: Study, page: Path) -> str | None:
    """The study that a page is about, by the records beside it; None if it is this one, or no record says.

    Where there are records of both, the title decides.
    """
    if not is_generated(page):
        return None
    loose = [record for _, record in read_files(page.parent)]
    records = [*loose, *stored(page.parent).values()]
    names = {named_study(record) for record in records} - {None}
    titled = f"\n# {study.about}\n" in page.read_text(encoding="utf-8")
    return None if titled and study.name in names else min(names - {study.name}, default=None)
