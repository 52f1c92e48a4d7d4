"""The index of results/README.md: every table and figure of the papers, its verdict or why there is none."""

from collections import Counter

from pipeline.files import RESULTS, read_json
from pipeline.papers import read_table
from pipeline.reports.tables import markdown_table
from pipeline.study.declaration import find_study, read_study, study_names
from pipeline.study.page import groups_of, shown_records, verdicts
from pipeline.verdicts import NOT_RUN


def index_section() -> str:
    """A table with a row for each table and figure of the papers."""
    rows = [
        [f"{item['paper']}, {item['item']}", item["what"], verdict_of(item), page_of(item)]
        for item in read_table("contents")
    ]
    return markdown_table(["paper", "what", "verdict", "page"], rows, figures=False)


def verdict_of(item: dict[str, str]) -> str:
    """The outcomes of a study's claims about the item, or of a figure's statements, and the note."""
    outcomes: Counter[str] = Counter()
    figure = RESULTS / f"{item['study']}.json"
    if figure.is_file():
        outcomes.update(one["verdict"] for one in read_json(figure)["checks"])
    elif item["study"] in study_names():
        study = read_study(find_study(item["study"]))
        for group in groups_of(study, shown_records(study, RESULTS / study.name)).values():
            found = verdicts(study, group)
            names = (item["item"], f"{item['paper']}, {item['item']}")
            outcomes.update(verdict.outcome for claim, verdict in found if claim.where in names)
    counted = ", ".join(f"{count} {outcome}" for outcome, count in outcomes.items() if outcome != NOT_RUN)
    return "; ".join(filter(None, [counted, item["note"]])) or "not run"


def page_of(item: dict[str, str]) -> str:
    """A link to where the figures are."""
    own = f"{item['study']}/README.md"
    page = own if item["study"] and (RESULTS / own).is_file() else item["page"]
    return f"[{page.partition('/README.md')[0].lstrip('#.') or 'page'}]({page})" if page else ""
