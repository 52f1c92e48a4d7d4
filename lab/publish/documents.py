"""Generate the tables of the documents from results/.

A table lives between two comments in README.md, results/README.md or docs/; what is between them is
replaced, the prose around them is left alone. No figure in a table is typed by hand.
"""

import re
import textwrap
from collections.abc import Callable
from functools import partial
from pathlib import Path

from lab.errors import UserError
from lab.files import RESULTS, ROOT, read_json, shown_path
from lab.methods import label_of
from lab.publish.tables import MEASURED_ON, grouped, markdown_table, where
from lab.store import STORE, stored

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


def operator_table(path: Path, title: str) -> str:
    """The table with this title of operator_cost.md, and the machine."""
    pieces = path.with_suffix(".md").read_text(encoding="utf-8").split("\n\n")
    table = pieces[pieces.index(title) + 1]
    return f"{table}\n\n{where(read_json(path)['environment'])}"


def decay_table(path: Path) -> str:
    """The rows of decay.md with decays, the machine, the picture and a link to the page."""
    _mark, about, table, *_ = path.with_suffix(".md").read_text(encoding="utf-8").split("\n\n")
    head, line, *rows = table.splitlines()
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
    """TransNormer T1's perplexities in some studies, and how that per word follows from bits and counts."""
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
    """Perplexity per word by the tokens that every token sees at least; a row for each model."""
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
    return {one: filled(one.read_text(encoding="utf-8"), one) for one in filter(Path.is_file, DOCUMENTS)}
