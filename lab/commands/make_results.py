"""The command `results`: brings the documents up to date with the committed results.

A table lives between two comments in README.md, results/README.md or docs/. The command replaces the text
between them and leaves the prose around them alone. No figure in a table is typed by hand.
"""

import re
import textwrap
from argparse import Namespace
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from functools import cache, partial
from pathlib import Path

from conventions.mechanisms import MECHANISMS
from lab.errors import UserError
from lab.files import RESULTS, ROOT, read_json, renewed, shown_path
from lab.methods import label_of
from lab.papers import read_table
from lab.provenance import stale
from lab.publish import analysis
from lab.publish.tables import MEASURED_ON, grouped, markdown_table, where
from lab.store import STORE, stored
from lab.study.declaration import our_studies, read_study, study_names
from lab.study.groups import groups_of, title_of
from lab.study.page import publish
from lab.study.schema import Record
from lab.study.shown import shown_records
from lab.study.table import claimed_records, verdicts
from lab.verdicts import NOT_RUN
from user_dir.attention import attention_class

WIDTH = 118  # of the prose around a paragraph
OPERATOR = "benchmarks/operator_cost.py"
DOCUMENTS = (
    ROOT / "results" / "README.md",
    ROOT / "README.md",
    ROOT / "docs" / "commands.md",
    ROOT / "docs" / "mechanisms.md",
    ROOT / "docs" / "operator.md",
    ROOT / "docs" / "perplexity.md",
)


def renew(check: bool) -> list[Path]:
    """Regenerate stale pages and plots; with `check`, only report them."""
    old = renewed(analysis.pages(RESULTS / "analysis"), check)
    for study in our_studies():
        old += publish(study, RESULTS / study.name, check)
    return old + renewed(texts(), check)  # the index links to the pages that are there


def operator_table(path: Path, title: str) -> str:
    """The table with this title of operator_cost.md, and the machine."""
    pieces = path.with_suffix(".md").read_text(encoding="utf-8").split("\n\n")
    table = pieces[pieces.index(title) + 1]
    return f"{table}\n\n{where(read_json(path)['environment'])}"


def decay_table(path: Path) -> str:
    """The rows of decay.md with decays, the machine, the picture and a link to the page."""
    parts = path.with_suffix(".md").read_text(encoding="utf-8").split("\n\n")
    place = next(i for i, part in enumerate(parts) if part.startswith("| "))
    about, (head, line, *rows) = parts[place - 1], parts[place].splitlines()
    rows = [row for row in rows if "ours, a decay" in row]
    folder = f"../results/{path.parent.relative_to(RESULTS).as_posix()}"
    picture = f"![What do decays cost, by head width?]({folder}/decay.png)"
    return "\n\n".join(["\n".join([head, line, *rows]), f"{about} ([page]({folder}/decay.md))", picture])


def quickstart(page: Path) -> str:
    """The table of the quickstart's page, and where it was measured."""
    parts = page.read_text(encoding="utf-8").split("\n\n")
    table, measured = (next(part for part in parts if part.startswith(word)) for word in ("| ", MEASURED_ON))
    return f"{table}\n\n{measured}"


def faults(path: Path) -> str:
    """How many faults of each kind training, studies and data preparation survived, and on which machine."""
    record = read_json(path)
    kinds = (f"{kind}, {found['survived']} of {found['broken']}" for kind, found in record["faults"].items())
    return textwrap.fill(f"Survived: {'; '.join(kinds)}. ({where(record)})", WIDTH)


def perplexity_example(*studies: str) -> str:
    """TransNormer T1's perplexities in some studies, and the one per word computed from bits and counts."""
    rows, sums = [], []
    for study in studies:
        record = stored(RESULTS / study)[Path("transnormer_t1", "seed1.json")]
        test, pieces = record["found"]["test"], record["data"]["vocabulary"]
        bits, tokens, words = test["bits"], test["tokens"], test["words"]
        figures = (f"{bits:.4f}", f"{test['perplexity']:.2f}", f"{test['perplexity_per_word']:.2f}")
        rows.append([f"{study}, {pieces:,} pieces", f"{tokens:,}", f"{words:,}", *figures])
        per_word = 2 ** (bits * tokens / words)
        sums.append(f"2^({bits:.4f} · {tokens:,} / {words:,}) = {per_word:.1f}")
    header = ["", "tokens", "words", "bits per token", "perplexity per token", "per word"]
    return f"{markdown_table(header, rows)}\n\nPer word: {', and '.join(sums)}."


def context_window(folder: Path) -> str:
    """Perplexity per word by the least context of a token; a row for each model."""
    records = sorted(map(read_json, folder.glob("*.json")), key=lambda one: one["context_window"])
    windows = sorted({one["context_window"] for one in records})
    rows = []
    for name, group in grouped(records, lambda one: one["architecture"]).items():
        found = {one["context_window"]: f"{one['perplexity_per_word']:,.1f}" for one in group}
        rows.append([label_of(name), *(found.get(window, "–") for window in windows)])
    header = ["`--context-window`: perplexity per word on test", *map(str, windows)]
    return markdown_table(header, rows)


def made_of(record: str, script: str, table: Callable[[Path], str]) -> str:
    """The table of a record, or which script would measure it."""
    path = RESULTS / record
    return table(path) if path.exists() else f"Not measured yet; `{script}` measures it."


def mechanisms_section() -> str:
    """The table of docs/mechanisms.md."""
    rows = []
    for name, one in MECHANISMS.items():
        attention = attention_class(name)
        options = (f"`{field.name.replace('_', '-')}`" for field in fields(attention.Options))
        causal = "no" if attention.bidirectional_only else "only" if attention.causal_only else "yes"
        rows.append([f"`{name}`", one.about, causal, one.time, one.state, ", ".join(options)])
    header = ["name", "mechanism", "causal", "time", "decoding state", "options"]
    return markdown_table(header, rows, figures=False)


def index_section() -> str:
    """The index of results/README.md: a row for each table and figure of the papers."""
    rows = [
        [f"{item['paper']}, {item['item']}", item["what"], verdict_of(item), page_of(item)]
        for item in read_table("contents")
    ]
    return markdown_table(["paper", "what", "verdict", "page"], rows, figures=False)


def verdict_of(item: dict[str, str]) -> str:
    """The outcomes of its studies' claims about the item, or of a figure's statements, and the note."""
    studies = item["study"].split()
    found = []
    for name in studies:
        counts = outcomes(name, item)
        if counted := ", ".join(f"{count} {outcome}" for outcome, count in counts.items()):
            found.append(f"{name}: {counted}" if len(studies) > 1 else counted)
    return "; ".join(filter(None, [*found, item["note"]])) or "not run"


def outcomes(name: str, item: dict[str, str]) -> Counter[str]:
    """How often a study, or a figure, gives each verdict about the item."""
    return Counter(one.outcome for one in judged(name, item))


@dataclass(frozen=True)
class Judged:
    """A claim about an item of a paper, what was found, the verdict, and the page and size of the study."""

    says: str
    paper: str
    effect: str
    outcome: str
    page: str
    size: str


def judged(name: str, item: dict[str, str]) -> list[Judged]:
    """The claims about an item on which a study, or a figure of the analysis, gives a verdict."""
    figure = RESULTS / f"{name}.json"
    if figure.is_file():
        record = read_json(figure)
        page = f"[analysis]({analysis.place(Path(name).parent, record['title'])})"
        return [
            Judged(one["statement"], one["expected"], one["measured"], one["verdict"], page, "")
            for one in analysis.claims_of(Path(name).parent.name, record)
        ]
    if name not in study_names():
        return []
    names = (item["item"], f"{item['paper']}, {item['item']}")
    return [one for where, one in judged_claims(name) if where in names]


@cache
def judged_claims(name: str) -> list[tuple[str, Judged]]:
    """The claims on which a study gives a verdict, each with its place in the papers."""
    study, found = read_study(name), []
    for group, records in groups_of(study, shown_records(study, RESULTS / study.name)).items():
        page = f"[{', '.join(filter(None, [name, title_of(study, group)]))}]({name}/README.md)"
        for claim, one in verdicts(study, records):
            if one.outcome != NOT_RUN:
                size = size_of(claimed_records(study, claim, records))
                found.append(
                    (claim.where, Judged(claim.says, one.paper, one.effect, one.outcome, page, size))
                )
    return found


def size_of(records: Sequence[Record]) -> str:
    """The largest model and the longest training of some records."""
    parameters = max((one["found"].get("parameters") or 0 for one in records), default=0)
    updates = max(one["training"]["updates"] for one in records)
    return f"{parameters / 1e6:.1f} M, {updates:,} updates"


def claims_section() -> str:
    """The verdicts of results/README.md: how many of each kind, and a table of the claims of each paper."""
    papers, parts = grouped(read_table("contents"), lambda item: item["paper"]), []
    kinds: dict[str, Counter[str]] = {}
    for paper, items in papers.items():
        rows = []
        kinds[paper] = Counter()
        for item in items:
            for one in (one for name in item["study"].split() for one in judged(name, item)):
                kinds[paper][one.outcome] += 1
                rows.append([item["item"], one.says, one.paper, one.effect, one.size, one.outcome, one.page])
        header = ["where", "claim", "paper", "here", "largest model and run", "verdict", "page"]
        parts += [f"### {paper}", markdown_table(header, rows, figures=False)]
    outcomes = sorted({outcome for counts in kinds.values() for outcome in counts})
    counted = [[paper, *(str(counts[outcome]) for outcome in outcomes)] for paper, counts in kinds.items()]
    return "\n\n".join([markdown_table(["claims", *outcomes], counted), *parts])


def page_of(item: dict[str, str]) -> str:
    """Links to where the figures are."""
    pages = list(filter(None, map(page_link, item["study"].split()))) or [item["page"]]
    return ", ".join(
        f"[{page.partition('/README.md')[0].lstrip('#.') or 'page'}]({page})" for page in filter(None, pages)
    )


def page_link(name: str) -> str | None:
    """Where a link to a study, or to a figure of the analysis, leads from results/; None without a page."""
    figure, page = RESULTS / f"{name}.json", f"{name}/README.md"
    if figure.is_file():
        return analysis.place(Path(name).parent, read_json(figure)["title"])
    return page if (RESULTS / page).is_file() else None


SECTIONS: dict[str, Callable[[], str]] = {
    "quickstart": partial(made_of, "quickstart/README.md", "scripts/quickstart.sh", quickstart),
    "crossover": partial(
        made_of,
        "measured/operator_cpu/operator_cost.json",
        OPERATOR,
        partial(operator_table, title="Linear against softmax, forward"),
    ),
    "decays": partial(made_of, "measured/operator_cpu/decay.json", f"{OPERATOR} --decay", decay_table),
    "operator_on_a_gpu": partial(
        made_of,
        "measured/operator_h100/operator_cost.json",
        OPERATOR,
        partial(operator_table, title="forward + backward, milliseconds"),
    ),
    "perplexity": partial(
        made_of, f"lm_long/{STORE}", "scripts/study.sh lm_long", lambda _: perplexity_example("lm", "lm_long")
    ),
    "context_window": partial(made_of, "measured/context_window", "scripts/eval_ppl.sh", context_window),
    "index": index_section,
    "claims": claims_section,
    "mechanisms": mechanisms_section,
    "faults": partial(made_of, "measured/fault_check.json", "scripts/lab.sh check faults", faults),
}
SECTION = re.compile(r"(<!-- table: (\S+) -->\n).*?(<!-- end -->)", re.DOTALL)


def filled(text: str, document: Path) -> str:
    """`text` with every table generated again; UserError for an unknown table."""

    def section(match: re.Match[str]) -> str:
        start, name, end = match.groups()
        if name not in SECTIONS:
            known = ", ".join(SECTIONS)
            raise UserError(f"{shown_path(document)} asks for table {name}; there are {known}")
        return f"{start}\n{SECTIONS[name]().strip()}\n\n{end}"

    return SECTION.sub(section, text)


def texts() -> dict[Path, str]:
    """The documents, and how they should read after the measured results."""
    judged_claims.cache_clear()  # records may be newer than an earlier call
    return {one: filled(one.read_text(encoding="utf-8"), one) for one in filter(Path.is_file, DOCUMENTS)}


def outdated(folder: Path = RESULTS / "measured") -> list[Path]:
    """The cost records measured with other sources than today's, or without naming them."""
    return [path for path in sorted(folder.rglob("*.json")) if stale(read_json(path))]


def say_what_is_stale(folder: Path = RESULTS / "measured") -> list[Path]:
    """Add the line that calls a page of costs stale below its mark, or remove it.

    `--check` ignores these lines, because every change of a source would ask for new ones.
    """
    texts = {}
    for path in sorted(folder.rglob("*.json")):
        if (page := path.with_suffix(".md")).is_file():
            mark, rest = without_stale(page.read_text(encoding="utf-8")).split("\n\n", 1)
            texts[page] = "\n\n".join(filter(None, [mark, stale(read_json(path)), rest]))
    return renewed(texts, check=False)


def without_stale(text: str) -> str:
    """A page of costs without the line that calls it stale."""
    return "\n\n".join(part for part in text.split("\n\n") if not part.startswith("Stale: "))


def main(options: Namespace) -> None:
    """Regenerate stale documents, or with --check only report them; list stale costs."""
    check = options.check
    if old := outdated():
        print(f"measured with other sources than today's: {', '.join(map(shown_path, old))}")
    names = ", ".join(map(shown_path, renew(check) + ([] if check else say_what_is_stale())))
    if names and check:
        raise UserError(f"{names} out of date; run scripts/lab.sh results and commit what it writes")
    if names:
        print(f"written: {names}")
    print("Tables and plots are up to date with the measured results.")
