"""Tables are made from the measured results and the papers' tables, and from nothing else."""

import re
from operator import le
from pathlib import Path

import pytest

from lab.commands import make_results
from lab.errors import UserError
from lab.files import ROOT, marked, read_json, renewed
from lab.methods import LANGUAGE_MODEL_PANELS, drawn
from lab.publish import language_models
from lab.store import stored

COMMITTED = ROOT / "results" / "measured"


@pytest.fixture
def project(tmp_path, monkeypatch):
    """Documents and results in a separate folder; returns the document."""
    document = tmp_path / "README.md"
    names = [name for name in make_results.SECTIONS if name not in ("index", "claims")]
    sections = "\n".join(f"<!-- table: {name} -->\n<!-- end -->" for name in names)
    document.write_text(f"# Prose\n\n{sections}\n\nMore prose.\n", encoding="utf-8")
    (tmp_path / "measured" / "operator_cpu").mkdir(parents=True)
    for suffix in (".json", ".md"):
        name = f"operator_cpu/operator_cost{suffix}"
        (tmp_path / "measured" / name).write_bytes((COMMITTED / name).read_bytes())
    monkeypatch.setattr(make_results, "RESULTS", tmp_path)
    monkeypatch.setattr(make_results, "DOCUMENTS", (document, tmp_path / "missing.md"))
    return document


@pytest.mark.longest
def test_committed_tables_and_pages_are_those_of_the_committed_results():
    assert make_results.renew(check=True) == []


def test_times_with_decays(project):
    assert "`benchmarks/operator_cost.py --decay` measures it" in make_results.SECTIONS["decays"]()
    path = make_results.RESULTS / "measured" / "operator_cpu" / "decay.json"
    path.touch()
    head = "| D | part | | ms |\n| --- | --- | --- | ---: |\n"
    rows = "".join(f"| 8 | forward | {name} | 1 |\n" for name in ("ours, no decay", "ours, a decay per head"))
    path.with_suffix(".md").write_text(marked(f"A machine; N = 8\n\n{head}{rows}"))
    text = make_results.SECTIONS["decays"]()
    assert "no decay" not in text and "| 8 | forward | ours, a decay per head | 1 |\n\nA machine" in text
    assert "(../results/measured/operator_cpu/decay.png)" in text


def test_tables_are_written_once_and_then_up_to_date(project):
    assert renewed(make_results.texts(), check=True) == [project]
    assert renewed(make_results.texts(), check=False) == [project]
    assert renewed(make_results.texts(), check=True) == []
    text = project.read_text(encoding="utf-8")
    assert text.startswith("# Prose\n") and text.endswith("\nMore prose.\n")
    assert "| head width | faster from N |" in text
    assert "Not measured yet; `scripts/quickstart.sh` measures it." in text
    before = project.stat().st_mtime_ns
    renewed(make_results.texts(), check=False)
    assert project.stat().st_mtime_ns == before


def test_a_page_that_says_it_is_stale_keeps_its_table(tmp_path, monkeypatch):
    monkeypatch.setattr(make_results, "RESULTS", tmp_path)
    (tmp_path / "measured").mkdir()
    page, lines = tmp_path / "measured" / "decay.md", ["| D | |", "| --- | --- |", "| 32 | ours, a decay |"]
    found = []
    for stale in ([], ["Stale: measured at commit abc."]):
        page.write_text("\n\n".join(["<!-- mark -->", *stale, "one thread", "\n".join(lines), "The end."]))
        found.append(make_results.decay_table(page.with_suffix(".json")))
    assert found[0] == found[1] and found[0].startswith("\n".join(lines)) and "one thread ([page]" in found[0]


def test_a_new_result_makes_its_table_stale(project):
    renewed(make_results.texts(), check=False)
    path = make_results.RESULTS / "measured" / "operator_cpu" / "operator_cost.md"
    path.write_text(path.read_text().replace("| 16 |", "| 17 |"))
    assert renewed(make_results.texts(), check=True) == [project]


def test_an_edited_table_is_noticed(project):
    renewed(make_results.texts(), check=False)
    text = project.read_text(encoding="utf-8")
    project.write_text(text.replace("faster from N", "faster"), encoding="utf-8")
    assert renewed(make_results.texts(), check=True) == [project]


def test_unknown_table_is_a_users_error(project):
    project.write_text("<!-- table: nonsense -->\n<!-- end -->", encoding="utf-8")
    with pytest.raises(UserError, match="asks for table nonsense"):
        renewed(make_results.texts(), check=False)


def test_tables_of_the_long_stream_are_those_of_its_record():
    path = COMMITTED / "carried_stream.json"
    assert marked(language_models.markdown(read_json(path))) == path.with_suffix(".md").read_text(
        encoding="utf-8"
    )


def anchors(path):
    """The anchors of the document's headings."""
    headings = re.findall(r"^#+ (.*)$", path.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading).strip().lower().replace(" ", "-") for heading in headings}


def test_links_between_documents_lead_somewhere():
    pages = [ROOT / "README.md", ROOT / "CONTRIBUTING.md"]
    pages += [page for folder in ("docs", "results", "data-prep") for page in (ROOT / folder).rglob("*.md")]
    broken = []
    for page in pages:
        for link in re.findall(r"\]\(((?!https?:)[^)\s]*)\)", page.read_text(encoding="utf-8")):
            name, _, anchor = link.partition("#")
            target = page.parent / name if name else page
            if not link or not target.exists() or (anchor and anchor not in anchors(target)):
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
    assert (
        f"{vanilla[0]:.2f} ms for a token at position 10 and {vanilla[-1]:.2f} ms at position 100,000"
        in readme
    )
    assert f"takes {ours[0]:.2f} ms per token at positions 10 and 100,000" in readme
    assert f"{ours[0]:.2f}" == f"{ours[-1]:.2f}"
    assert ours[0] < 1.1 * vanilla[0] and all(map(le, ours[1:], vanilla[1:]))
    goal = r"TransNormer T1, training time per token at 16,384 over that at 1,024: [^|]*\| ([\d.]+) \|"
    [growth] = re.findall(goal, page.read_text(encoding="utf-8"))
    assert f"is {growth} times as long at 16,384 tokens as at 1,024 " in readme
    ours, vanilla = (medians(page, "Peak memory of a training step", name) for name in models)
    assert f"{ours[1] / vanilla[1]:.2f} times as much per token at 1,024 tokens" in readme
    index = (ROOT / "results" / "README.md").read_text(encoding="utf-8").split("| claims |")[1]
    rows = re.findall(r"^\| [\w ]+ \| (\d+) \| (\d+) \| (\d+) \| (\d+) \|$", index, re.MULTILINE)
    confirmed, contradicted, *_ = kinds = [sum(map(int, column)) for column in zip(*rows, strict=True)]
    counted = f"of {sum(kinds)} tests, {confirmed} confirm a claim, {contradicted} contradict one, and the"
    assert counted in readme


def test_the_first_figures_of_the_readme_are_of_todays_sources():
    """Where a source that README's models run has changed, `scripts/lab.sh costs` measures them again."""
    record = read_json(COMMITTED / "lm_cost_cpu.json")
    shown = drawn(record["settings"]["architectures"], LANGUAGE_MODEL_PANELS)
    assert make_results.stale({**record, "settings": {**record["settings"], "architectures": shown}}) == ""


def test_the_worked_example_of_perplexity_is_right():
    text = (ROOT / "docs" / "perplexity.md").read_text(encoding="utf-8").replace(",", "")
    examples = re.findall(r"2\^\(([\d.]+) · (\d+) / (\d+)\) = (\d+\.\d)", text)
    studies = ("lm", "lm_long")
    for study, (bits, tokens, words, shown) in zip(studies, examples, strict=True):
        found = stored(ROOT / "results" / study)[Path("transnormer_t1", "seed1.json")]["found"]["test"]
        assert [int(tokens), int(words)] == [found["tokens"], found["words"]]
        assert 2 ** (float(bits) * int(tokens) / int(words)) == pytest.approx(float(shown), rel=1e-3)
        assert float(shown) == pytest.approx(found["perplexity_per_word"], abs=0.05)
    lines, words = 4358, int(words)
    without = found["perplexity_per_word"] ** (words / (words - lines))
    assert f"{words - lines} words in {lines} lines together {words}" in " ".join(text.split())
    assert f"from {shown} to {without:.0f}" in " ".join(text.split())


def test_the_documents_download_glue_from_its_sources():
    text = (ROOT / "data-prep" / "README.md").read_text(encoding="utf-8")
    sources = read_json(ROOT / "data-prep" / "sources.json")
    [tasks] = re.findall(r"for task in (.*); do", text)
    assert [f"{task}.zip" for task in tasks.split()] == [
        name for name in sources["glue"]["files"] if name.endswith(".zip")
    ]
    assert f"{sources['glue']['address']}/$task.zip" in text
    assert f"{sources['glue']['address']}/mrpc_dev_ids.tsv" in text
    assert f"{sources['glue-mrpc']['address']}/msr_paraphrase_$part.txt" in text
    rows = re.findall(r"^\| (`[a-z0-9-]+`(?:, `[a-z0-9-]+`)*) \|.*\.sh", text, re.MULTILINE)
    assert {*re.findall(r"`([^`]+)`", " ".join(rows))} == {
        name for name in sources if not name.startswith(("wikitext", "gpt2"))
    }


def test_every_recorded_study_is_among_those_that_take_as_long():
    text = (ROOT / "docs" / "studies.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (\d+) to (\d+) \| (.*) \|$", text, re.MULTILINE)
    bands = {
        name: (int(low), int(high)) for low, high, names in rows for name in re.findall(r"`(\w+)`", names)
    }
    assert {*bands} == {path.parent.name for path in (ROOT / "results").glob("*/records.jsonl")}
    for name, (low, high) in bands.items():
        records = stored(ROOT / "results" / name).values()
        assert low <= sum(one["training"]["seconds"] for one in records) / 3600 < high, name


def test_the_readme_counts_the_mechanisms_that_its_table_leaves_out():
    page = (ROOT / "docs" / "mechanisms.md").read_text(encoding="utf-8")
    names = re.findall(r"^\| `(\w+)` \|", page, re.MULTILINE)
    shown = {"retention", "lightning", "gated"}
    assert len({*names[names.index("performer") :]} - shown) == 14
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert "and fourteen methods they compare with" in readme and "\nFourteen more, " in readme
