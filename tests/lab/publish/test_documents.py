"""Tables are made from the measured results and the papers' tables, and from nothing else."""

import re
import statistics

import pytest

from lab.commands import make_results
from lab.errors import UserError
from lab.files import ROOT, read_json, renewed
from lab.outputs import marked
from lab.publish import carried_state, documents

COMMITTED = ROOT / "results" / "measured"


@pytest.fixture
def project(tmp_path, monkeypatch):
    """Documents and results in a folder of their own; returns the document."""
    document = tmp_path / "README.md"
    names = [name for name in documents.SECTIONS if name != "index"]
    sections = "\n".join(f"<!-- table: {name} -->\n<!-- end -->" for name in names)
    document.write_text(f"# Prose\n\n{sections}\n\nMore prose.\n", encoding="utf-8")
    (tmp_path / "measured" / "operator_cpu").mkdir(parents=True)
    for suffix in (".json", ".md"):
        name = f"operator_cpu/operator_cost{suffix}"
        (tmp_path / "measured" / name).write_bytes((COMMITTED / name).read_bytes())
    monkeypatch.setattr(documents, "RESULTS", tmp_path)
    monkeypatch.setattr(documents, "DOCUMENTS", (document, tmp_path / "missing.md"))
    return document


def test_committed_tables_and_pages_are_those_of_the_committed_results():
    assert make_results.renew(check=True) == []


def test_tables_are_written_once_and_then_up_to_date(project):
    assert renewed(documents.texts(), check=True) == [project]
    assert renewed(documents.texts(), check=False) == [project]
    assert renewed(documents.texts(), check=True) == []
    text = project.read_text(encoding="utf-8")
    assert text.startswith("# Prose\n") and text.endswith("\nMore prose.\n")
    assert "| head width | faster from N |" in text
    assert "Not measured yet; `scripts/quickstart.sh` measures it." in text
    before = project.stat().st_mtime_ns
    renewed(documents.texts(), check=False)
    assert project.stat().st_mtime_ns == before


def test_a_new_result_makes_its_table_stale(project):
    renewed(documents.texts(), check=False)
    path = documents.RESULTS / "measured" / "operator_cpu" / "operator_cost.md"
    path.write_text(path.read_text().replace("| 16 |", "| 17 |"))
    assert renewed(documents.texts(), check=True) == [project]


def test_an_edited_table_is_noticed(project):
    renewed(documents.texts(), check=False)
    text = project.read_text(encoding="utf-8")
    project.write_text(text.replace("faster from N", "faster"), encoding="utf-8")
    assert renewed(documents.texts(), check=True) == [project]


def test_unknown_table_is_a_users_error(project):
    project.write_text("<!-- table: nonsense -->\n<!-- end -->", encoding="utf-8")
    with pytest.raises(UserError, match="asks for table nonsense"):
        renewed(documents.texts(), check=False)


def test_tables_of_the_long_stream_are_those_of_its_record():
    path = COMMITTED / "carried_stream.json"
    assert marked(carried_state.markdown(read_json(path))) == path.with_suffix(".md").read_text(
        encoding="utf-8"
    )


def anchors(path):
    """What a link to a heading of the document may end in."""
    headings = re.findall(r"^#+ (.*)$", path.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading).strip().lower().replace(" ", "-") for heading in headings}


def test_links_between_documents_lead_somewhere():
    pages = [ROOT / "README.md", ROOT / "CONTRIBUTING.md"]
    pages += [page for folder in ("docs", "results", "data-prep") for page in (ROOT / folder).rglob("*.md")]
    broken = []
    for page in pages:
        for link in re.findall(r"\]\(((?!https?:)[^)\s]+)\)", page.read_text(encoding="utf-8")):
            name, _, anchor = link.partition("#")
            target = page.parent / name if name else page
            if not target.exists() or (anchor and anchor not in anchors(target)):
                broken.append(f"{page.relative_to(ROOT)}: {link}")
    assert not broken


def medians(page, title, name):
    """The first numbers of the cells of a row, in the table below a title."""
    table = page.read_text(encoding="utf-8").split(title)[1].split("\n\n")[1]
    [row] = [line for line in table.splitlines() if line.startswith(f"| {name} |")]
    return [float(cell.split()[0]) for cell in row.strip("| ").split("|")[1:]]


def test_the_first_figures_of_the_readme_are_those_of_the_records():
    readme = " ".join((ROOT / "README.md").read_text(encoding="utf-8").split())
    page, models = COMMITTED / "lm_cost_cpu.md", ("TransNormer T1", "vanilla")
    ours, vanilla = (medians(page, "Milliseconds per decoded", name) for name in models)
    assert f"takes {ours[-1]} ms per token at position 100,000 and {ours[0]} ms at position 10;" in readme
    assert f"takes {vanilla[-1]} and {vanilla[0]} ms" in readme
    parts = (COMMITTED / "model_parts" / "model_parts_cost.md").read_text(encoding="utf-8")
    [row] = re.findall(r"^\| time of decoding \| TransNormer T1 \| \S+ \| (\S+) \|$", parts, re.MULTILINE)
    assert f"T1 takes {row} times vanilla's time at position 10" in readme
    ours, vanilla = (medians(page, "Seconds per training step", name) for name in models)
    assert f"is {ours[-1] / ours[1]:.2f} times as long at 16,384 tokens as at 1,024;" in readme
    assert f"vanilla's is {vanilla[-1] / vanilla[1]:.1f} times as long" in readme
    less = [
        1 - statistics.median(record["ms"]) / min(record["published_ms"].values())
        for record in read_json(COMMITTED / "operator_h100" / "anchor.json")["records"]
        if record["name"] == "ours, cuda"
    ]
    assert f"need {100 * min(less):.0f} to {100 * max(less):.0f} % less" in readme


def test_the_readme_counts_the_mechanisms_that_its_table_leaves_out():
    page = (ROOT / "docs" / "mechanisms.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `(\w+)` \| [^|]+ \| (\w+) \|", page, re.MULTILINE)
    names = [name for name, causal in rows if causal != "only"]  # the README has those with decays
    assert len(names[names.index("performer") :]) == 14
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert "and fourteen methods they compare with" in readme and "\nFourteen more, " in readme
