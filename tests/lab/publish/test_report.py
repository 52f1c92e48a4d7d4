"""report.sh: finished and unfinished runs, results, nothing at all; and the page in a browser."""

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from lab.files import marked, write_json
from lab.publish import report
from lab.publish.html import EmbeddedPicture, Heading, Page, Section, Table, markdown_parts, render
from lab.publish.report import environments_in
from lab.publish.report_runs import appearances, find_runs, read_configuration
from lab.store import STORE
from tests.helpers.logs import LOG, inner

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
MACHINE = {
    "commit": "abc",
    "date": "2000-01-02",
    "hardware": {"cpu": "a CPU", "memory_gib": 4.0},
    "threads": 2,
    "versions": {"torch": "2"},
}


def configuration(architecture, lr, save_dir, plan, max_update=40):
    """The line in which fairseq prints it, with an enumeration and a Namespace as it prints them."""
    text = repr(
        {
            "_name": None,
            "common": {"seed": 1},
            "task": {"_name": "language_modeling", "dataset_impl": None},
            "model": {"_name": architecture, "decoder_layers": 2, "decoder_attention": plan},
            "optimization": {"max_update": max_update, "lr": [lr]},
            "checkpoint": {"save_dir": str(save_dir)},
        }
    )
    text = text[:-1] + ", 'dataset': {'comm_hook': none, 'extra': Namespace(a=-1)}}"
    return f"2000-01-02 03:04:05 | INFO | fairseq_cli.train | {text}\n"


def write_run(folder, architecture, lr, lines=LOG, plan=None):
    folder.mkdir(parents=True)
    head = [
        configuration(architecture, lr, folder, plan),
        "x | INFO | fairseq_cli.train | num. shared model params: 1,234 (num. trained: 1,234)\n",
    ]
    (folder / "train.log").write_text("".join([*head, *lines]))


@pytest.fixture
def runs(tmp_path):
    """Two finished runs, one at its beginning, one without a single update, one moved aside; results."""
    folder = tmp_path / "runs & <more>"
    write_run(folder / "a" / "one", "transnormer_t1", 0.01)
    write_run(folder / "b", "transformer_lm", 0.02)
    write_run(folder / "c", "an_architecture_of_their_own", 0.1, [inner(10, 9.0, 5)])
    write_run(folder / "d", "transnormer_t2", 0.01, [])
    write_run(folder / "b" / "earlier-1", "transformer_lm", 0.5)
    (folder / "e").mkdir()
    (folder / "e" / "train.log").write_text("half a li")
    figures = {"split": "valid", "perplexity_per_token": 20.0, "perplexity_per_word": 300.5, "updates": 40}
    for name, value in (("a/one", 300.5), ("b", 1200.25), ("c", 99.0), ("b/earlier-1", 7.0)):
        record = {**figures, "architecture": name, "perplexity_per_word": value, **MACHINE}
        write_json(folder / name / "checkpoint_best.valid.json", record)
    (folder / "b" / "half.json").write_text('{"perplexity_per_')
    for name in ("train.log", "moved.json"):  # links to a disk that is not there
        (folder / "f").mkdir(exist_ok=True)
        (folder / "f" / name).symlink_to(tmp_path / "disk" / name)
    return folder


def written(call, runs, out):
    for _ in range(2):  # the second replaces its own page
        call(report, runs, "--out", out)
    return out.read_text()


def rows_of(page, caption):
    """The cells of the table with this caption."""
    table = next(part for part in page.split("<table>") if caption in part).split("</table>")[0]
    rows = re.findall(r"<tr>(.*?)</tr>", table, re.DOTALL)
    return [
        [re.sub("<.*?>", "", cell) for cell in re.findall(r"<td[^>]*>(.*?)</td>", row)] for row in rows[1:]
    ]


def test_runs_from_their_logs(runs):
    found = {run.name: run for run in find_runs([runs])}
    assert list(found) == ["a/one", "b", "c", "d", "e"]
    assert [run.status for run in found.values()] == ["finished"] * 2 + ["at 10 of 40", "at 0 of 40", "at 0"]
    one = found["a/one"]
    assert one.parameters == 1234 and one.figures["peak_memory_bytes"] == 1000
    assert one.curve("train")[-2:] == [(30, 7.5), (40, 7.0)] and one.curve("valid") == [(20, 8.5), (40, 7.2)]
    assert one.settings["dataset"] == {"comm_hook": "none", "extra": {"a": -1}}
    assert found["c"].curve("train") == [(10, 9.0)] and found["c"].method is None
    # Speed and time are known before the first validation.
    assert found["c"].figures["tokens_per_second"] and found["c"].figures["seconds"]
    assert found["d"].figures["seconds"] is None


def test_the_method_is_that_of_the_layer_plan(call, tmp_path):
    plans = ("softmax", "norm*2", "norm", "diag,norm", None)
    for number, plan in enumerate(plans):
        write_run(tmp_path / "runs" / str(number), "transnormer_t1", 0.01, plan=plan)
    looks = appearances(find_runs([tmp_path / "runs"]))
    assert [label for label, _, _ in looks] == ["softmax", "1", "2", "diag,norm", "TransNormer T1"]
    colors = [color for _, color, _ in looks]
    assert colors[1] == colors[2] and len(set(colors)) == 4 and looks[1][2] != looks[2][2]
    rows = rows_of(written(call, tmp_path / "runs", tmp_path / "report.html"), "Models and their cost")
    assert [row[2] for row in rows] == ["softmax", *["NormAttention"] * 2, "diag,norm", "TransNormer T1"]


def test_the_log_file_of_fairseq_train(tmp_path):
    """A log of bare lines, in which later epochs stand several times."""
    for name in ("printed", "file"):
        write_run(tmp_path / name, "transnormer_t1", 0.01)
    log = tmp_path / "file" / "train.log"
    bare = [re.sub(r"^.* \| INFO \| [\w.]+ \| ", "", line) for line in log.read_text().splitlines(True)]
    log.write_text("".join(line for line in bare for _ in range(2) if "peak_memory" not in line))
    file, printed = find_runs([tmp_path])
    assert (file.settings["task"], file.parameters) == (printed.settings["task"], printed.parameters)
    assert file.status == printed.status == "finished" and file.ended == printed.ended
    assert file.figures == {**printed.figures, "peak_memory_bytes": None}


def test_a_configuration_is_never_run(tmp_path):
    text = f"{{'task': {{'_name': open({str(tmp_path / 'x')!r}, 'w').name}}}}"
    assert read_configuration(text)["task"]["_name"].startswith("open(")
    assert not (tmp_path / "x").exists()
    assert read_configuration("{'task': ") == {}


def test_page(call, runs, tmp_path):
    page = written(call, runs, tmp_path / "report.html")
    models = rows_of(page, "Models and their cost")
    assert [row[:6] for row in models[:2]] == [
        ["a/one", "transnormer_t1", "TransNormer T1", "finished", "40", "1,234"],
        ["b", "transformer_lm", "vanilla", "finished", "40", "1,234"],
    ]
    assert [row[7] for row in models[:4]] == ["7.200", "7.200", "–", "–"]
    assert [row[1] for row in rows_of(page, "Settings that differ")] == ["0.01", "0.02", "0.1", "0.01"]
    assert 'href="runs%20%26%20%3Cmore%3E/a/one/train.log"' in page and "<more>" not in page
    assert page.count("<svg") == 2 and page.count("TransNormer T1</text>") == 2
    assert [row[6] for row in rows_of(page, "perplexity per word")] == ["300.50", "1,200.25", "99.00"]
    assert rows_of(page, "memory, GiB")[0][:4] == ["3", "abc", "a CPU, 2 threads", "4.0"]
    assert not re.search(r"""(src|href)=["']?(https?:)?//""", page) and "@import" not in page


def test_records_and_pages_of_studies(call, runs, tmp_path):
    """A run of fine-tuning is a row; a study that has a page is that page, and no other README."""
    found = {"dev": {"valid": {"accuracy": 51.0}}, "learning_rate": 0.01, "task": "RTE", "score": 51.0}
    glue = {"found": found, "cell": {"task": "RTE", "lr": "0.01", "seed": 1}, "training": {"updates": 3}}
    write_json(runs / "glue" / "RTE" / "0.01" / "seed1.json", {"study": "glue", **glue})
    lra = {"study": "lra", "cell": {"task": "text", "method": "elu", "seed": 1}, "found": {}}
    for study in ("lra", "unfinished"):
        write_json(runs / study / "text" / "elu" / "seed1.json", lra)
    (runs / "lra" / "README.md").write_text(marked("# Long Range Arena\n\nOne cell.\n"))
    for other in (runs / "unfinished", runs.parent):
        (other / "README.md").write_text("# The project\n")
    page = written(call, runs, tmp_path / "report.html")
    assert ["RTE/0.01/seed1", "RTE", "0.01", "1", "3", "valid accuracy 51.00"] in [
        row[:6] for row in rows_of(page, "dev, percent")
    ]
    assert "One cell." in page and "The project" not in page
    assert len(rows_of(page, "Models and their cost")) == 4


def test_a_damaged_store_is_named_and_left_out(call, runs, tmp_path, capsys):
    (runs / STORE).write_text("<<<<<<< HEAD\n")
    assert "transnormer_t1" in written(call, runs, tmp_path / "report.html")
    said = capsys.readouterr().out
    assert re.search("left out: .*records.jsonl: line 1 begins a conflict of a merge;", said)


def test_a_perplexity_of_a_study_has_the_name_of_its_cell(call, runs, tmp_path):
    found = {"apart": {"test": {"perplexity_per_token": 537.35}}}
    carried = {"study": "carried", "checkpoint": "last", "cell": {"model": "elu", "seed": 1}, "found": found}
    write_json(runs / "carried" / "elu" / "seed1.json", carried)
    page = written(call, runs, tmp_path / "report.html")
    assert ["carried/elu/seed1.json", "test"] in [row[:2] for row in rows_of(page, "perplexity per word")]


def test_a_text_beside_a_result_is_shown_only_if_it_was_generated(call, runs, tmp_path):
    write_json(runs / "n.json", {"mine": 1})
    (runs / "n.md").write_text("| a | b |")
    page = written(call, runs, tmp_path / "report.html")
    (runs / "n.md").write_text(marked("A cost of mine."))
    assert "n.json" not in page and "A cost of mine." in written(call, runs, tmp_path / "report.html")


@pytest.mark.parametrize(
    "record",
    [
        {"perplexity_per_token": 3},
        {"perplexity_per_token": "abc", "split": "valid"},
        {"study": "x", "cell": 5, "found": {}},
        {"found": {"dev": 3, "learning_rate": 1, "task": "RTE", "score": 1}, "cell": {"seed": 1}},
        {**MACHINE, "hardware": 3},
    ],
)
def test_files_of_other_origin_are_left_out(call, runs, tmp_path, record):
    page = written(call, runs, tmp_path / "report.html")
    write_json(runs / "theirs.json", record)
    assert written(call, runs, tmp_path / "report.html") == page


@pytest.mark.parametrize(
    "line",
    [
        '{"num_updates": 3, "loss": 2.0}',
        '{"num_updates": NaN, "loss": 2.0, "wps": 1, "wpb": 1}',
        "{'optimization': {'max_update': 'many'}}",
        "{'word'}",
    ],
    ids=["no speed", "no number", "a word for a number", "a set"],
)
def test_a_log_of_other_origin_is_named_and_left_out(line, call, runs, tmp_path, capsys):
    page = written(call, runs, tmp_path / "report.html")
    (runs / "theirs").mkdir()
    (runs / "theirs" / "train.log").write_text(line + "\n")
    assert written(call, runs, tmp_path / "report.html") == page
    assert f"left out: {runs / 'theirs' / 'train.log'}\n" in capsys.readouterr().out


def test_the_same_runs_give_the_same_page(call, runs, tmp_path):
    assert written(call, runs, tmp_path / "one.html") == written(call, runs, tmp_path / "two.html")


def test_machines_in_lists():
    record = {"benchmark": "lm_cost", "sessions": [MACHINE, {**MACHINE, "commit": "later"}]}
    assert [part["commit"] for part in environments_in(record)] == ["abc", "later"]


def test_nothing_to_report(refused, tmp_path):
    (tmp_path / "empty").mkdir()
    out = tmp_path / "report.html"
    sentence = refused(report, tmp_path / "empty", "--out", out)
    assert "holds neither runs nor results; train a model first" in sentence
    assert "there is no folder" in refused(report, tmp_path / "none", "--out", out)
    assert "cannot write" in refused(report, tmp_path / "empty", "--out", tmp_path)
    assert not out.exists()


def test_parts_of_documents(tmp_path):
    (tmp_path / "curves.png").write_bytes(b"")
    text = "# A title\n\n<!-- no text -->\nA note\nof `two` lines.\n\nSeconds, by [length](a.md):\n\n"
    text += "| | 512 |\n| --- | ---: |\n| a \\| b\\* | 1.5 |\n\n- met: one\n- **bold**\n\n"
    text += "## A part\n\n![the curves](curves.png)\n![gone](gone.png)\n"
    title, note, table, *goals, part, picture = markdown_parts(text, tmp_path)
    assert (title, part) == (Heading("A title", 1), Heading("A part", 2))
    assert (note, goals) == ("A note of two lines.", ["met: one", "bold"])
    assert table == Table(["", "512"], [["a | b*", "1.5"]], "Seconds, by length:")
    assert table.kinds == ["text", "number"]
    assert isinstance(picture, EmbeddedPicture) and "the curves" in picture.markup
    page = render(Page("A page", "", [Section("One", [title, part])]))
    assert "<h3>A title</h3>" in page and "<h4>A part</h4>" in page


PROBE = """
<script>
const seen = {};
const column = (name) => {
  const table = [...document.querySelectorAll("table")].find((t) => t.tHead.textContent.includes(name));
  const at = [...table.tHead.rows[0].cells].findIndex((cell) => cell.textContent.trim() === name);
  const read = () => [...table.tBodies[0].rows].map((row) => row.cells[at].textContent.trim());
  return [table.tHead.rows[0].cells[at], read];
};
for (const name of ["perplexity per word", "valid loss, bits", "architecture"]) {
  const [header, read] = column(name);
  seen[name] = [];
  for (const turn of [1, 2]) {
    header.querySelector("button").click();
    seen[name].push([header.getAttribute("aria-sort"), ...read()]);
  }
}
seen.overflow = document.documentElement.scrollWidth - document.documentElement.clientWidth;
seen.width = innerWidth;
document.body.dataset.seen = JSON.stringify(seen);
</script>
"""


@pytest.mark.skipif(not CHROMIUM, reason="there is no Chromium (Debian: apt-get install chromium)")
def test_in_a_browser(call, runs, tmp_path):
    """The page sorts, fits a telephone's width, asks the network for nothing and reports no error."""
    page = written(call, runs, tmp_path / "report.html")
    (tmp_path / "probe.html").write_text(page.replace("</body>", f"{PROBE}</body>"))
    seen, console = browse(tmp_path / "probe.html", tmp_path / "profile")
    assert console == []
    assert seen["width"] <= 500 and seen["overflow"] <= 0
    words = ["99.00", "300.50", "1,200.25"]
    assert seen["perplexity per word"] == [["ascending", *words], ["descending", *words[::-1]]]
    assert [turn[-2:] for turn in seen["valid loss, bits"]] == [["–", "–"]] * 2
    assert seen["architecture"][0][1:] == sorted(seen["architecture"][0][1:])


def browse(path: Path, profile: Path):
    """The probe's observations, and the console's lines."""
    command = [CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={profile}"]
    command += ["--window-size=400,900", "--enable-logging=stderr", "--dump-dom", path.as_uri()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    dumped = re.search(r'data-seen="([^"]*)"', done.stdout)
    return json.loads(dumped[1].replace("&quot;", '"')), re.findall(r".*CONSOLE.*", done.stderr)


@pytest.mark.skipif(not CHROMIUM, reason="there is no Chromium (Debian: apt-get install chromium)")
def test_the_browser_would_have_told_of_an_error(tmp_path):
    page = render(Page("A page", "", [Section("One", ["a sentence"])]))
    broken = "<script>document.body.dataset.seen = '1'; nobody_has_defined_this();</script></body>"
    (tmp_path / "page.html").write_text(page.replace("</body>", broken))
    seen, console = browse(tmp_path / "page.html", tmp_path / "profile")
    assert seen == 1 and "nobody_has_defined_this is not defined" in console[0]
