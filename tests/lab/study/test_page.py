"""The page of a study: medians over seeds, the paper's rows, baselines, verdicts, notes and pictures."""

import copy
import json
import math
import os
import re
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
from matplotlib.colors import to_rgb

from lab.commands.make_results import page_of, verdict_of
from lab.data.prepared import identify
from lab.errors import UserError
from lab.files import RESULTS, ROOT, run_lock, write_json
from lab.methods import LANGUAGE_MODELS, NAMED
from lab.papers import read_table
from lab.publish import plots
from lab.publish.html import markdown_parts
from lab.publish.plots import colors_of
from lab.run.recipe import given_settings
from lab.store import STORE
from lab.study import cli, records
from lab.study.cli import check_out
from lab.study.declaration import read_study, study_names
from lab.study.groups import groups_of
from lab.study.page import check_replaceable, how_to_train, publish, tuned_table, write_page
from lab.study.pictures import pictures_of
from lab.study.records import best_records, read_records
from lab.study.schema import Best, PaperColumn, follow, parse_expression
from lab.study.shown import check_one_setting, shown_records
from lab.study.table import AT_BASELINE, claimed_records, verdicts, write_table
from tests.lab.study.conftest import cells, made_up, record_of, write_record

ABSENT = object()
LOSSES = (0.1, 0.2, 0.6)  # whose mean is not their median
METHODS = {
    name: {"plan": plan} for name, plan in (("softmax", "softmax"), ("elu", "elu"), ("norm-t1", "norm"))
}
RECORDS = [
    *(made_up("elu", n, loss_nats=loss, exact=0.5, converged=n > 1) for n, loss in enumerate(LOSSES, 1)),
    *(made_up("softmax", seed, loss_nats=2.305) for seed in (1, 2, 3)),
]


def written(study, out, records=RECORDS):
    for record in records:
        asked = {"method": [record["cell"]["method"]]}
        [cell] = cells(study, asked, out=out, flags=record["flags"])
        write_record(replace(cell, seed=record["cell"]["seed"]), record)


def test_a_row_is_a_choice_in_the_order_of_the_axis(study_file):
    study = read_study(study_file)
    lines = write_table(study.tables[0], RECORDS, study.baselines).splitlines()
    assert lines[2] == "| softmax\\* | 2.3050 | – | – | 3 |"
    assert lines[3] == "| 1+elu | 0.2000 (0.1000 to 0.6000) | 50.0 | 2 of 3 | 3 |"
    assert lines[4] == "| guessing | 2.3000 | – | – |  |"
    assert lines[-1] == AT_BASELINE


def test_a_figure_that_some_seeds_lack_says_so(study_file):
    study = read_study(study_file)
    records = [made_up("elu", 1, loss_nats=0.1), made_up("elu", 2)]
    assert "0.1000; 1 of 2 seeds" in write_table(study.tables[0], records, ())


def test_the_papers_figure_beside_a_row(study_file):
    axes = read_study(study_file).axes
    spec = read_study(study_file).tables[0]
    rows = {"elu": {"method": "x", "valid": "1.0", "test": "2.0"}, "softmax": {"valid": "-", "test": "3.5"}}
    one = replace(spec, papers=(PaperColumn("a_01", ("method",), rows, {"": "test"}, "", "paper"),))
    assert [one.paper_figure((name,)) for name in ("elu", "softmax", "norm-t1")] == ["2.0", "3.5", ""]
    by = PaperColumn("a_01", ("method",), rows, {"tiny": "valid"}, "preset", "paper")
    two = replace(spec, rows={name: axes[name] for name in ("method", "preset")}, papers=(by,))
    keys = [("elu", "tiny"), ("elu", "small"), ("softmax", "tiny")]
    assert [two.paper_figure(key) for key in keys] == ["1.0", "", "-"]
    assert two.paper_values(keys) == {"elu/tiny": 1.0}


def test_a_table_across_an_axis(study_with):
    """Medians, their mean where a row has learned all, seeds where others have more, and the papers' row."""
    table = {
        "rows": ["method", "preset"],
        "across": "preset",
        "average": "mean",
        "columns": [["loss", "loss_nats", ".2f"], ["updates", "updates", ".0f"]],
    }
    study = study_with(axes={"preset": ["tiny", "small"], "method": METHODS}, table=table, claims=[])
    records = []
    for method, preset, losses, updates in (
        ("elu", "small", (1.0, 2.0, 6.0), 9),
        ("elu", "tiny", LOSSES, 4),
        ("softmax", "small", (1.0, 1.5, 2.0), 4),
        ("softmax", "tiny", (2.305,), 4),
        ("norm-t1", "small", (1.0, 2.0), 4),
        ("norm-t1", "tiny", (1.0, 2.0, 2.5), 4),
    ):
        for seed, loss in enumerate(losses, 1):
            cell = {"preset": preset, "method": method, "seed": seed}
            records.append(record_of(cell, {"loss_nats": loss, "updates": updates}))
    assert write_table(study.tables[0], records, study.baselines).splitlines()[2:] == [
        "|  | tiny | small | mean | updates |",
        "| --- | ---: | ---: | ---: | ---: |",
        "| softmax | 2.31\\* [1 of 3 seeds] | 1.50 (1.00 to 2.00) | – | 4 |",
        "| 1+elu | 0.20 (0.10 to 0.60) | 2.00 (1.00 to 6.00) | 1.10 | 4 to 9 |",
        "| norm-t1 | 2.00 (1.00 to 2.50) | 1.50 (1.00 to 2.00) [2 of 3 seeds] | 1.75 | 4 |",
        "| guessing | 2.30 | 2.30 | – | – |",
        "",
        AT_BASELINE,
    ]


def test_an_average_is_of_the_usual_choices_alone(study_with):
    """A choice on request has a column of its own, and so has one that the study no longer has."""
    axes = {"preset": {"tiny": {}, "small": {}, "huge": {"on_request": True}}, "method": METHODS}
    columns = [["loss", "loss_nats", ".2f"]]
    table = {"rows": ["method", "preset"], "across": "preset", "average": "mean", "columns": columns}
    study = study_with(axes=axes, table=table, claims=[], baseline=None)
    losses = {("elu", "tiny"): 1.0, ("elu", "small"): 2.0, ("elu", "huge"): 9.0, ("elu", "gone"): 9.0}
    losses |= {("softmax", "tiny"): 2.0, ("softmax", "small"): 3.0}
    records = [
        record_of({"preset": preset, "method": method, "seed": 1}, {"loss_nats": loss})
        for (method, preset), loss in losses.items()
    ]
    header, _, *rows = write_table(study.tables[0], records, []).splitlines()[2:]
    assert header == "|  | tiny | small | huge | gone | mean |"
    assert rows == [
        "| softmax | 2.00 | 3.00 | – | – | 2.50 |",
        "| 1+elu | 1.00 | 2.00 | 9.00 | 9.00 | 1.50 |",
    ]


def test_an_average_across_an_axis_has_no_figure_of_earlier_settings(study_with):
    table = {
        "rows": ["method", "preset"],
        "across": "preset",
        "average": "mean",
        "columns": [["loss", "loss_nats", ".2f"]],
    }
    baseline = {"name": "guessing", "found": {"loss_nats": "examples"}}
    axes = {"preset": ["tiny", "small"], "method": METHODS}
    study = study_with(axes=axes, table=table, claims=[], baseline=baseline)
    records = [
        record_of(
            {"preset": preset, "method": method, "seed": 1}, {"loss_nats": 1.0, "examples": level}, **older
        )
        for method, preset, level, older in (
            ("softmax", "tiny", 9, {"older": True}),
            ("softmax", "small", 8, {}),
            ("elu", "tiny", 2, {}),
            ("elu", "small", 3, {}),
        )
    ]
    assert write_table(study.tables[0], records, study.baselines).splitlines()[4:] == [
        "| softmax | 1.00 | 1.00 | – |",
        "| 1+elu | 1.00 | 1.00 | 1.00 |",
        "| guessing | 2.00 | 8.00 | – |",
    ]


def test_a_rank_correlation_and_a_baseline_count_no_earlier_settings(study_file):
    study = read_study(study_file)
    names = ("softmax", "elu", "norm-t1", "norm-t2", "lln", "performer")
    rows = {name: {"loss": str(place)} for place, name in enumerate(names)}
    paper = PaperColumn("a_01", ("method",), rows, {"": "loss"}, "", "paper")
    records = [made_up(name, 1, loss_nats=float(place), level=5) for place, name in enumerate(names)]
    records[0] = {**made_up("softmax", 1, loss_nats=9.0, level=7), "older": True}
    spec = replace(study.tables[0], papers=(paper,))
    baseline = replace(study.baselines[0], found={"loss_nats": "level"}, margin={})
    lines = write_table(spec, records, [baseline]).splitlines()
    assert lines[-1] == "Rank correlation with the paper's column (Spearman, 5 rows): 1.00."
    assert lines[-3].startswith("| guessing | 5.0000 |")


def test_the_whole_page(study_file, tmp_path):
    study, out = read_study(study_file), tmp_path / "out"
    written(study, out)
    files = publish(study, out)
    assert [path.name for path in files] == ["README.md", "tiny-curves.png"]
    page = files[0].read_text(encoding="utf-8")
    assert "| linear is as good | Figure 2 |  | not comparable | softmax at the baseline |" in page
    assert "4 updates, median (lowest to highest) over the seeds 1, 2, 3." in page
    assert "Measured on a CPU, 2 threads, 2000-01-02 (commit abc)" in page
    assert publish(study, out, check=True) == []
    before = [path.stat().st_mtime_ns for path in files]
    assert publish(study, out) == []
    assert [path.stat().st_mtime_ns for path in files] == before
    written(study, out, [made_up("elu", 3, loss_nats=0.4)])
    assert publish(study, out, check=True) == files
    assert [path.stat().st_mtime_ns for path in files] == before


def test_the_heading_of_a_group_has_the_labels_of_its_choices(study_with):
    """One that the study no longer declares has its name."""
    for declared, heading in (({"tiny": {"label": "few updates"}}, "few updates"), ({"small": {}}, "tiny")):
        study = study_with(axes={"preset": declared, "method": METHODS})
        assert f"## {heading}\n" in write_page(study, RECORDS)


def test_the_groups_of_a_page_are_in_the_order_of_the_yaml(study_with):
    """One that the study no longer declares comes last."""
    study = study_with(axes={"preset": {"tiny": {}, "small": {}}, "method": METHODS})
    moved = [
        {**record, "cell": {**record["cell"], "preset": preset}}
        for preset in ("gone", "small", "tiny")
        for record in RECORDS
    ]
    assert [group for (group,) in groups_of(study, moved)] == ["tiny", "small", "gone"]


ANSWER = """
{{median("loss_nats", "elu", ".1f")}} is {{change("loss_nats", "elu", "softmax")}},
{{points("loss_nats", "softmax", "elu")}}, {{highest("loss_nats", "elu", ".1f")}} at most;
{{ranked("loss_nats")[0]}} is first; linear is as good:
{{verdict("linear is as good")}}."""


def test_a_page_opens_with_question_answer_and_verdicts(study_with, tmp_path):
    """Tables, pictures and notes follow, in this order; the lines of a paragraph are even."""
    study = study_with(asks="Which is best?", answer=ANSWER)
    written(study, tmp_path)
    page = publish(study, tmp_path)[0].read_text(encoding="utf-8").split("\n\n")
    assert page[2:5] == [
        "Which is best?",
        "0.2 is 91 % below, 2.1 above, 0.6 at most; 1+elu is first; linear is as good: not comparable.",
        "Claims of the papers: 1 not comparable.",
    ]
    beginnings = ["## tiny", "| ", "| claim", "![tiny-curves]", "4 updates, median", "Measured on"]
    places = [next(i for i, part in enumerate(page) if part.startswith(word)) for word in beginnings]
    assert places == sorted(places)
    assert "There is no answer yet: softmax has not been measured." in write_page(study, RECORDS[:3])
    by_seed = study_with(answer="{{median('loss_nats', 'elu/1', '.1f')}}")  # a seed is not a choice
    assert "There is no answer yet: elu/1 has not been measured." in write_page(by_seed, RECORDS)


@pytest.mark.parametrize(
    ("answer", "named"),
    [
        ("{{median('peak_memory_bytes', 'elu', '.1f')}}", "answer: peak_memory_bytes, which tiny has not"),
        ("{{median('loss_nats', 'tiny', '.1f')}}", "answer: tiny names no row, or several"),
        ("{{verdict('linear is bad')}}", "answer: no claim 'linear is bad'"),
        ("{{median('loss_nats')}}", "answer cannot be filled in"),
        ("{{median.__self__.study}}", "answer cannot be filled in"),
    ],
)
def test_a_wrong_answer_is_refused(answer, named, study_with):
    with pytest.raises(UserError, match=named):
        write_page(study_with(answer=answer), RECORDS)


@pytest.mark.parametrize("name", [one for one in study_names() if (RESULTS / one / "README.md").exists()])
def test_a_committed_page_answers_and_is_short(name):
    page = (RESULTS / name / "README.md").read_text(encoding="utf-8")
    assert read_study(name).asks in page and read_study(name).answer and "There is no answer yet" not in page
    assert len([line for line in page.splitlines() if line and not line.startswith("|")]) < 80
    assert page.splitlines()[-1].startswith(f"To train these cells yourself: `scripts/study.sh {name}` (")


def test_only_a_committed_page_says_how_to_train_its_cells(study_file, tmp_path):
    """A user's own study has no name that the command knows, and another folder no documents beside it."""
    ours, own = read_study("copy"), read_study(study_file)
    assert how_to_train(ours, RESULTS / "copy").startswith(
        "To train these cells yourself: `scripts/study.sh copy` "
    )
    assert how_to_train(ours, tmp_path) == how_to_train(own, RESULTS / "tiny") == ""
    written(own, tmp_path)
    assert "To train these cells" not in publish(own, tmp_path)[0].read_text(encoding="utf-8")


def test_notes_name_every_number_of_updates(study_with):
    first, *others = copy.deepcopy(RECORDS)
    first["training"]["updates"] = 1_005
    page = write_page(study_with(notes="{{updates}} updates."), [first, *others])
    assert "\n\n4 or 1,005 updates.\n\n" in page


@pytest.mark.parametrize(
    "notes",
    [
        "{{ cycler.__init__.__globals__.os.system('true') }}",
        "{{ ''.__class__.__mro__[1].__subclasses__() }}",
        "{{ records.append(1) }}",
        "{{ cell.update(seed=2) }}",
        "{{ '{0.__class__}'.format(flags) }}",
        "{% include '/etc/passwd' %}",
        "{% macro a() %}{{ a() }}{% endmacro %}{{ a() }}",
    ],
)
def test_notes_run_no_program(study_with, notes, monkeypatch):
    """Every one of them ends in a sentence, and those that jinja2 would run change nothing."""
    ran, before = [], copy.deepcopy(RECORDS)
    monkeypatch.setattr(os, "system", ran.append)
    with pytest.raises(UserError, match="notes cannot be filled in"):
        write_page(study_with(notes=notes), RECORDS)
    assert not ran and before == RECORDS


@pytest.mark.parametrize("kind", ["notes", "latin-1", "link", "pipe"])
@pytest.mark.parametrize("name", ["README.md", "tiny-curves.png"])
def test_files_of_somebody_else_are_refused_before_and_after_a_run(name, kind, study_file, tmp_path):
    study, out = read_study(study_file), tmp_path / "out"
    written(study, out)
    target = tmp_path / "target"
    target.write_text(f"# {study.about}\n\nmine")
    if kind == "pipe":
        os.mkfifo(out / name)
    elif kind == "link":
        (out / name).symlink_to(target)
    else:
        (out / name).write_bytes({"notes": target.read_bytes(), "latin-1": "Möwe".encode("latin-1")}[kind])
    for action in (lambda: publish(study, out), lambda: check_out(cells(study, out=out))):
        with pytest.raises(UserError, match=f"{name} was not written by scripts/study.sh.*move it away"):
            action()
    assert [path.name for path in out.iterdir() if not path.is_dir()] == [name]
    assert target.read_text().endswith("mine") and (out / name).is_symlink() == (kind == "link")


def test_a_claim_is_decided_in_the_table_that_has_its_rows(study_file):
    """The first of two tables has only one of them."""
    text = study_file.read_text().replace("[loss_nats, elu, softmax]", "[loss_nats, elu, norm-t2]")
    before, table = text.split("table:\n")
    _, after = table.split("baseline:")
    table = "  - {{rows: method, only: {{method: [elu, {}]}}, columns: [[loss, loss_nats, '.4f']]}}\n"
    tables = "".join(map(table.format, ("norm-t1", "norm-t2")))
    study_file.write_text(f"{before}tables:\n{tables}baseline:{after}")
    records = [made_up("elu", seed, loss_nats=0.4) for seed in (1, 2, 3)]
    records += [made_up(name, seed, loss_nats=0.5) for name in ("norm-t1", "norm-t2") for seed in (1, 2, 3)]
    ((_, verdict),) = verdicts(read_study(study_file), records)
    assert verdict.outcome == "confirmed", verdict


def test_the_table_of_tuning_has_a_column_for_each_value_of_any_record(study_file):
    """The values that a study tunes may become more after some of its cells are finished."""
    tried = {"elu": {"2": 3.0, "4": 2.5}, "softmax": {"1": None, "2": 2.0, "4": 5.0}}
    about = {"setting": "lr", "by": "valid_loss"}
    records = [
        {
            **made_up(method, 1),
            "tuned": {**about, "tried": found, "chosen": min(found, key=lambda x: found[x] or 9)},
        }
        for method, found in tried.items()
    ]
    said, table = markdown_parts(tuned_table(read_study(study_file), records))
    assert "in 5 runs of the first seed;" in said
    rows = {name: dict(zip(table.header[1:], found, strict=True)) for name, *found in table.rows}
    assert rows == {"softmax": {"2": "2 *", "4": "5", "1": "–"}, "1+elu": {"2": "3", "4": "2.5 *", "1": "–"}}


def test_settings_are_those_of_the_flags_where_these_are_given():
    record = {
        "settings": {"model": {"dropout": 0.1, "adaptive_input": False}, "optimization": {"lr": [0.1]}},
        "own_flags": ["--adaptive-input", "--lr", "5e-4", "--seed", "1"],
    }
    found = {"model": {"dropout": 0.1, "adaptive_input": True}, "optimization": {"lr": 0.0005}}
    assert given_settings(record) == found


def test_every_curve_has_a_colour_of_its_own():
    rows = [(name,) for name in (*LANGUAGE_MODELS, "reformer-1", "reformer-4", "mine", "another")]
    colors = colors_of(rows, {"reformer-1": "reformer", "reformer-4": "reformer"})
    assert len(set(colors.values())) == len(rows)
    assert colors["reformer-1",] == NAMED["reformer"].color.lower()
    assert colors["transnormer_t1",] == NAMED["transnormer_t1"].color.lower()


def test_variants_become_paler_in_the_order_of_the_yaml(study_with, tmp_path):
    rows, variants = [("reformer-1",), ("reformer-4",), ("reformer",)], ["reformer-4", "reformer-1"]
    colors = colors_of(rows, dict.fromkeys(variants, "reformer"))
    reds = [colors[name,] for name in ("reformer", *variants)]
    assert reds == sorted(reds, key=brightness) and reds[0] == NAMED["reformer"].color.lower()
    plots = [{"curves": "train", "methods": dict.fromkeys(some, "elu")} for some in (["x", "y"], ["y", "x"])]
    first, second = (pictures_of(study_with(plot=plot), RECORDS, tmp_path)[0] for plot in plots)
    assert first.source != second.source


def brightness(color):
    return sum(to_rgb(color))


def test_records_of_different_flags_share_no_page(study_file, tmp_path):
    other, study = made_up("elu", 1, loss_nats=0.1), read_study(study_file)
    other["flags"] = ["--lr", "1"]
    written(study, tmp_path, [*RECORDS, other])
    with pytest.raises(UserError, match="--out"):
        publish(study, tmp_path)


def test_a_file_that_is_no_record_is_passed_over_and_a_damaged_one_is_named(study_file, tmp_path):
    study = read_study(study_file)
    (tmp_path / "seed1.json").write_text("[1, 2]")
    assert read_records(tmp_path, study) == []
    (tmp_path / "seed2.json").write_text("{")
    with pytest.raises(UserError, match=r"seed2\.json"):
        read_records(tmp_path, study)


def test_a_record_belongs_to_the_cell_whose_place_it_has(study_file, tmp_path):
    """Neither a copy nor a backup is another seed."""
    study = read_study(study_file)
    written(study, tmp_path)
    record = tmp_path / "tiny" / "elu" / "seed1.json"
    for place in ("seed1 (copy).json", "seed4.json", "../softmax/seed4.json", "../../seed1/seed1/seed1.json"):
        copy = record.parent / place
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_text(record.read_text())
        said = f"{copy.name} is not in the place of its cell, {record}; move it away"
        with pytest.raises(UserError, match=re.escape(said)):
            publish(study, tmp_path)
        copy.unlink()
    assert len(read_records(tmp_path, study)) == len(RECORDS)


def test_the_record_of_a_renamed_study_is_not_to_be_measured_again(study_file, tmp_path):
    written(read_study(study_file), tmp_path)
    renamed = study_file.rename(study_file.with_name("renamed.yaml"))
    said = "a record of the study tiny, not of renamed; choose another --out, or if tiny.yaml was renamed"
    with pytest.raises(UserError, match=said):
        [cell.record() for cell in cells(read_study(renamed), out=tmp_path)]


CHANGES = (ABSENT, None, "x", [], {}, math.nan, [[1, "a"]])


def every_path(value, keys=()):
    yield keys
    if isinstance(value, dict):
        for key, one in value.items():
            yield from every_path(one, (*keys, key))


def changed(record, keys, value):
    if not keys:
        return value
    one = {**record, keys[0]: changed(record[keys[0]], keys[1:], value)}
    return {key: x for key, x in one.items() if x is not ABSENT}


def test_a_record_with_any_part_missing_or_of_another_kind_is_named(study_file, tmp_path):
    """Everything in it except for figures that no table shows."""
    study = read_study(study_file)
    [cell] = cells(study, {"method": ["elu"]}, out=tmp_path)
    write_record(cell, made_up("elu", 1, loss_nats=0.1, exact=0.5, converged=True))
    whole, refused = read_records(tmp_path, study)[0], Counter()
    for keys in every_path(whole):
        for value in CHANGES:
            if follow(whole, keys) == value or (not keys and value is ABSENT):
                continue
            cell.record_path.write_text(json.dumps(changed(whole, keys, value)))
            try:
                if read_records(tmp_path, study) != [whole]:
                    publish(study, tmp_path, check=True)
            except UserError as error:
                assert "seed1.json" in str(error) and "\n" not in str(error)
                refused[keys] += 1
    for keys in [("cell", "seed"), ("settings",), ("own_flags",), ("training", "curves"), ("found", "exact")]:
        assert refused[keys], keys


@pytest.mark.parametrize(
    ("keys", "value", "said"),
    [
        (("found", "loss_nats"), math.nan, "is not a complete record: found.loss_nats is nan"),
        (("training", "curves", "train"), [[1, -math.inf]], "record: training.curves.train is -inf"),
        (("found", "exact"), "half", "is not a complete record: exact is 'half', not a number"),
        (("settings",), {"model": {"dropout": 0.5}}, "was edited: its settings are not those of its finger"),
        (("own_flags",), ["--lr", "1"], "was edited: its settings are not those of its fingerprint"),
    ],
)
def test_why_a_record_is_refused(keys, value, said, study_file, tmp_path):
    study = read_study(study_file)
    [cell] = cells(study, {"method": ["elu"]}, out=tmp_path)
    write_record(cell, made_up("elu", 1, loss_nats=0.1, exact=0.5))
    [whole] = read_records(tmp_path, study)
    cell.record_path.write_text(json.dumps(changed(whole, keys, value)))
    with pytest.raises(UserError, match=f"seed1.json .*{said}"):
        read_records(tmp_path, study)


RECALL = {
    "evaluate": "recall",
    "extras": True,
    "table": {"rows": "method", "columns": [["right, %", "100*accuracy", ".1f"]]},
    "claims": [],
}


def recalled(method, share=0.5):
    """A record of recall; its page has the accuracy, its picture the share."""
    return made_up(method, 1, accuracy=0.5, by_pairs={"1": 1.0, "2": share}, state_numbers=8)


@pytest.mark.parametrize(
    "recorded",
    [
        [recalled("elu"), recalled("softmax", None)],
        [recalled("elu"), recalled("softmax", None), recalled("norm-t1", None)],
    ],
    ids=len,
)
def test_a_record_that_only_a_picture_cannot_show_is_named(recorded, study_with, tmp_path):
    study = study_with(**RECALL, baseline={"name": "guessing", "found": {"accuracy": 0.1}})
    written(study, tmp_path, recorded)
    with pytest.raises(
        UserError, match=r"tiny/(norm-t1|softmax)/seed1\.json lacks figures that the page shows"
    ):
        publish(study, tmp_path)


@pytest.mark.parametrize("methods", [["elu"], ["elu", "softmax"]], ids=len)
def test_a_mistake_of_the_yaml_is_not_blamed_on_a_record_alone(methods, study_with, tmp_path):
    study = study_with(**RECALL, baseline={"name": "guessing", "found": {"by_pairs.2.x": 0.1}})
    written(study, tmp_path, map(recalled, methods))
    said = r"tiny\.yaml: the page cannot be made of its records, .*TypeError: .*check baseline"
    with pytest.raises(UserError, match=said):
        publish(study, tmp_path)


def test_records_of_earlier_settings_are_named_and_count_in_no_verdict(study_with, tmp_path):
    claim = {"says": "so", "where": "1", "test": {"ratio": ["loss_nats", "elu", "softmax"], "at_most": 2}}
    before = study_with(claims=[claim])
    written(before, tmp_path)
    assert "earlier settings" not in write_page(before, shown_records(before, tmp_path))
    methods = {"softmax": {"plan": "softmax"}, "elu": {"plan": "elu", "dropout": 0.1}}
    now = study_with(claims=[claim], axes={"preset": ["tiny"], "method": methods})
    page = write_page(now, shown_records(now, tmp_path))
    assert "Measured with earlier settings of this study, and counted in no verdict: tiny/elu." in page
    assert "| 1+elu | 0.2000" in page and "| so | 1 |  | not run |" in page
    assert "\n\nClaims of the papers: 1 not run.\n\n" in page
    written(now, tmp_path, [made_up("elu", 4, loss_nats=0.7)])
    page = write_page(now, shown_records(now, tmp_path))  # the others of its row are left out
    assert "earlier settings" not in page and "| 1+elu | 0.7000 |" in page


def test_notes_are_those_of_the_present_settings(study_with):
    """Of the earlier ones where no row has others."""
    study = study_with(
        claims=[], notes="{{settings.model.layers}} layers, {{updates}} updates, {{over_seeds}}."
    )
    older, now = (
        {**made_up(method, seed), "settings": {"model": {"layers": layers}}}
        for method, seed, layers in (("softmax", 1, 1), ("elu", 2, 6))
    )
    older = {**older, "older": True, "training": {"updates": 9, "seconds": 1.0, "curves": {}}}
    assert "\n\n6 layers, 4 updates, seed 2." in write_page(study, [older, now])
    assert "\n\n1 layers, 9 updates, seed 1." in write_page(study, [older])


def tuned_record(seed, chosen, values):
    tuned = {"setting": "lr", "by": "valid_loss", "chosen": chosen, "tried": dict.fromkeys(values, 1.0)}
    return {**made_up("elu", seed, loss_nats=0.1 * seed), "tuned": tuned}


@pytest.mark.parametrize(("chosen", "outcome"), [("0.2", "confirmed"), ("0.4", "undecided")])
def test_a_row_tuned_to_the_end_of_its_list_decides_no_claim_of_the_page(chosen, outcome, study_with):
    test = {"ratio": ["loss_nats", "elu", "softmax"], "at_most": 1.1}
    study = study_with(claims=[{"says": "so", "where": "1", "test": test}])
    records = [tuned_record(seed, chosen, ["0.1", "0.2", "0.4"]) for seed in (1, 2, 3)]
    records += [made_up("softmax", seed, loss_nats=0.2 * seed) for seed in (1, 2, 3)]
    assert f"| so | 1 |  | {outcome} | ratio 0.5 " in write_page(study, records)


@pytest.mark.parametrize(
    ("elu", "softmax", "outcome"),
    [
        (25_000, 25_000, "confirmed"),
        (250, 25_000, "undecided"),
        (25_000, 250, "undecided"),
    ],
)
def test_the_smallest_test_set_of_the_claimed_rows_decides(elu, softmax, outcome, study_with):
    test = {"difference": ["100*exact", "elu", "softmax"], "at_least": 0, "examples": "examples"}
    study = study_with(claims=[{"says": "so", "where": "1", "test": test}])
    records = [made_up("elu", seed, exact=0.8, examples=elu) for seed in (1, 2, 3)]
    records += [made_up("softmax", seed, exact=0.79, examples=softmax) for seed in (1, 2, 3)]
    records += [made_up("norm-t1", seed, exact=0.5, examples=10) for seed in (1, 2, 3)]
    assert f"| so | 1 |  | {outcome} | difference 1 " in write_page(study, records)


def write_tuned(study, out, record):
    [cell] = cells(study, {"method": ["elu"]}, out=out)
    write_record(replace(cell, seed=record["cell"]["seed"], chosen=record["tuned"]["chosen"]), record)


def test_a_record_counts_only_if_the_study_tunes_its_cell_as_it_was_tuned(study_with, tmp_path):
    tune = {"axis": "lr", "values": [0.1, 0.2, 0.4], "updates": 3}
    tuning, out = study_with(tune=tune), tmp_path / "out"
    written(tuning, out, [made_up("elu", 1, loss_nats=0.1)])
    assert "counted in no verdict: tiny/elu." in write_page(tuning, shown_records(tuning, out))
    write_tuned(tuning, out, tuned_record(1, "0.2", ["0.1", "0.2", "0.4"]))
    assert "earlier settings" not in write_page(tuning, shown_records(tuning, out))
    for others in ({**tune, "only": {"method": "softmax"}}, None):
        not_tuning = study_with(tune=others)
        assert "counted in no verdict: tiny/elu." in write_page(not_tuning, shown_records(not_tuning, out))


@pytest.mark.parametrize(
    "change",
    [
        {"checkpoint": "best"},
        {"tune": {"axis": "lr", "values": [0.1, 0.2, 0.4], "updates": 4}},
        {"tune": {"axis": "lr", "values": [0.1, 0.2, 0.4, 0.8], "updates": 3}},
    ],
)
def test_a_record_that_was_tuned_or_measured_otherwise_counts_in_no_verdict(study_with, tmp_path, change):
    keys = {"checkpoint": "last", "tune": {"axis": "lr", "values": [0.1, 0.2, 0.4], "updates": 3}}
    study, record = study_with(**keys), tuned_record(1, "0.2", ["0.1", "0.2", "0.4"])
    record = {**record, "checkpoint": "last", "tuned": {**record["tuned"], "updates": 3}}
    write_tuned(study, tmp_path, record)
    assert "earlier settings" not in write_page(study, shown_records(study, tmp_path))
    now = study_with(**{**keys, **change})
    page = write_page(now, shown_records(now, tmp_path))
    assert "counted in no verdict: tiny/elu." in page and "in 3 runs of 3 updates of the first seed" in page


def test_a_row_has_the_tuned_value_of_its_first_seed(study_with, tmp_path):
    """As long as the seeds of an earlier choice have not been measured again."""
    study = study_with(tune={"axis": "lr", "values": [0.1, 0.2, 0.4], "updates": 3})
    write_tuned(study, tmp_path, tuned_record(1, "0.2", ["0.1", "0.2", "0.4"]))
    write_tuned(study, tmp_path, tuned_record(2, "0.4", ["0.2", "0.4"]))
    assert [record["cell"]["seed"] for record in shown_records(study, tmp_path)] == [1]


def test_a_choice_that_is_gone_is_not_those_whose_names_it_begins(study_with, tmp_path):
    methods = {"lln": {"plan": "lln"}, "lln-1": {"plan": "lln", "lln_alpha": 1.0}}
    before = study_with(axes={"preset": ["tiny"], "method": methods}, claims=[])
    written(before, tmp_path, [made_up("lln", 1, loss_nats=0.1), made_up("lln-1", 1, loss_nats=0.2)])
    now = study_with(axes={"preset": ["tiny"], "method": {"lln-1": methods["lln-1"], "lln-2": {}}}, claims=[])
    assert "counted in no verdict: tiny/lln." in write_page(now, shown_records(now, tmp_path))


def test_pictures_show_neither_earlier_settings_nor_missing_points(study_with, tmp_path):
    before = study_with(claims=[])
    written(before, tmp_path, RECORDS[:1])
    methods = {"softmax": {"plan": "softmax"}, "elu": {"plan": "elu", "dropout": 0.1}}
    now = study_with(axes={"preset": ["tiny"], "method": methods}, claims=[])
    assert [path.name for path in publish(now, tmp_path)] == ["README.md"]
    record = made_up("softmax", 1, loss_nats=2.0)
    record["training"]["curves"]["train"] = [[1, 3.0], [2, None], [3, 2.0]]
    written(now, tmp_path, [record])
    assert [path.name for path in publish(now, tmp_path)] == ["README.md", "tiny-curves.png"]


def test_a_picture_has_the_curves_of_the_first_seed_by_updates_and_by_time(study_with, tmp_path, monkeypatch):
    drawn = []
    monkeypatch.setattr(plots, "plot_curves", lambda path, panels, **words: drawn.append((panels, words)))
    plot = {"curves": "train", "by": ["updates", "seconds"], "y": "bits", "factor": 2.0}
    records = [made_up(method, seed) for method in ("elu", "softmax") for seed in (1, 2)]
    records[0]["training"]["curves"]["train"] = [[1, 5.0], [2, None], [3, 4.0]]
    [picture] = pictures_of(study_with(plot=plot), records, tmp_path)
    picture.draw(picture.path)
    [(panels, words)] = drawn
    assert [texts for *texts, _ in panels] == [["tiny", "updates", "bits"], ["tiny", "training, s", "bits"]]
    lines = [
        {curve.label: [*zip(curve.x, curve.y, strict=True)] for curve in curves} for *_, curves in panels
    ]
    assert lines == [
        {"softmax": [(1, 6.0), (2, 4.0)], "1+elu": [(1, 10.0), (3, 8.0)]},
        {"softmax": [(0.5, 6.0), (1.0, 4.0)], "1+elu": [(0.5, 10.0), (1.5, 8.0)]},
    ]
    assert words["asks"] == "A tiny study" and not words["log"]


def sources_of(study, records):
    return [picture.source for picture in pictures_of(study, records, Path())]


LEVEL = {"curves": "train", "y": "loss", "baseline": "loss_nats"}
GUESSING = {"name": "guessing", "found": {"loss_nats": 2.3}}


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ({}, {"axes": {"preset": ["tiny"], "method": {**METHODS, "elu": {"plan": "elu", "label": "mine"}}}}),
        ({}, {"axes": {"preset": {"tiny": {"label": "few updates"}}, "method": METHODS}}),
        ({}, {"axes": {"preset": ["tiny"], "method": dict(reversed(METHODS.items()))}}),
        ({}, {"about": "Another title"}),
        ({"about": "A title"}, {"asks": "Which is best?"}),
        ({"plot": LEVEL}, {"baseline": {**GUESSING, "found": {"loss_nats": 2.2}}}),
        ({"plot": LEVEL}, {"baseline": {**GUESSING, "name": "chance"}}),
    ],
)
def test_curves_are_drawn_again_where_the_study_gives_them_other_words(before, after, study_with):
    keys = {"axes": {"preset": ["tiny"], "method": METHODS}, "baseline": GUESSING, "asks": "", **before}
    first = sources_of(study_with(**keys), RECORDS)
    assert sources_of(study_with(**keys, notes="Other notes."), RECORDS) == first
    assert not {*sources_of(study_with(**{**keys, **after}), RECORDS)} & {*first}


def test_curves_are_drawn_again_in_another_colour(study_file, monkeypatch):
    study = read_study(study_file)
    first = sources_of(study, RECORDS)
    monkeypatch.setitem(NAMED, "elu", replace(NAMED["elu"], color="#123456"))
    assert not {*sources_of(study, RECORDS)} & {*first}


@pytest.mark.parametrize(
    "after",
    [
        {"axes": {"preset": ["tiny"], "method": {**METHODS, "elu": {"plan": "elu", "label": "mine"}}}},
        {"baseline": {"name": "guessing", "found": {"by_pairs.2": 0.25}}},
    ],
)
def test_a_picture_of_a_measure_is_drawn_again_where_the_study_gives_it_other_words(after, study_with):
    keys = {**RECALL, "plot": None, "baseline": {"name": "guessing", "found": {"by_pairs.2": 0.5}}}
    keys["axes"] = {"preset": ["tiny"], "method": METHODS}
    records = [recalled("elu"), recalled("softmax")]
    first = sources_of(study_with(**keys), records)
    further = {"preset": ["tiny"], "method": {**METHODS, "lln": {"plan": "lln"}}}
    assert len(first) == 1 and sources_of(study_with(**{**keys, "axes": further}), records) == first
    assert sources_of(study_with(**{**keys, **after}), records) != first


def test_records_of_different_starting_checkpoints_share_no_page(study_file, tmp_path):
    study, start = read_study(study_file), {"path": "a.pt", "fingerprint": "a"}
    records = [{**record, "start": start} for record in RECORDS[:2]]
    written(study, tmp_path, records)
    assert shown_records(study, tmp_path)
    written(study, tmp_path, [{**RECORDS[2], "start": {**start, "fingerprint": "b"}}])
    with pytest.raises(UserError, match="started from different checkpoints; give each its own --out"):
        shown_records(study, tmp_path)
    written(study, tmp_path, [{**RECORDS[2], "start": {**start, "fingerprint": "b", "seed": 1}}])
    with pytest.raises(UserError, match="different checkpoints"):
        shown_records(study, tmp_path)
    runs = [
        {**record, "start": {**start, "fingerprint": mark, "seed": 1}}
        for mark, record in zip("abc", RECORDS[:3], strict=True)
    ]
    written(study, tmp_path, runs)
    assert shown_records(study, tmp_path)  # of runs of another study, one for each method


def test_the_papers_figures_are_those_of_the_claims_table(study_with):
    paper = {
        "table": "linear_01_mnist",
        "value": "bits_per_dim",
        "rows": {"softmax": "softmax", "elu": "linear"},
    }
    test = {"ratio": ["loss_nats", "elu", "softmax"], "at_most": 1.1}
    own = {"table": "lln_05_lra", "value": "text", "rows": ["LLN+Diag", "Softmax"]}
    claims = [
        {"says": "its own", "where": "Table 1", "test": test},
        {"says": "another paper's", "where": "LLN, Table 1", "test": test},
        {"says": "a figure", "where": "Figure 2", "test": test},
        {"says": "named", "where": "LLN, Table 5", "test": test, "paper": own},
    ]
    page = write_page(study_with(paper=paper, claims=claims), RECORDS)
    images, lra = (
        {row["method"]: row[column] for row in read_table(table)}
        for table, column in (("linear_01_mnist", "bits_per_dim"), ("lln_05_lra", "text"))
    )
    for shown in (
        f"| its own | Table 1 | {images['linear']}, {images['softmax']} |",
        "| another paper's | LLN, Table 1 |  |",
        "| a figure | Figure 2 |  |",
        f"| named | LLN, Table 5 | {lra['LLN+Diag']}, {lra['Softmax']} |",
    ):
        assert shown in page


def test_the_size_of_a_claim_is_that_of_its_rows(study_with):
    test = {"ratio": ["loss_nats", "elu", "softmax"], "at_most": 1.1}
    study = study_with(claims=[{"says": "so", "where": "1", "test": test}])
    records = [made_up(method, 1, loss_nats=0.1, parameters=1) for method in ("elu", "softmax", "norm-t1")]
    compared = claimed_records(study, study.claims[0], records)
    assert [one["cell"]["method"] for one in compared] == ["softmax", "elu"]


def test_cells_of_other_data_share_no_page(study_with, tmp_path):
    study = study_with(data="data/{method}")
    records = [{**made_up("elu", seed), "data": {"sha256": seed}} for seed in (1, 2)]
    check_one_setting(study, records[:1], tmp_path)
    with pytest.raises(UserError, match="cells of different data/elu"):
        check_one_setting(study, records, tmp_path)


def test_data_that_have_changed_since_earlier_records_are_refused_before_a_training(
    study_with, tmp_path, monkeypatch
):
    study, data, out = study_with(data="data/{preset}"), tmp_path / "data" / "tiny", tmp_path / "out"
    data.mkdir(parents=True)
    (data / "train.idx").write_text("of earlier data")
    elu, softmax = (
        cells(study, {"method": [name]}, out=out, data=data.parent) for name in ("elu", "softmax")
    )
    write_record(elu[0], {**made_up("elu", 1, loss_nats=0.1), "data": identify(data)})
    trained = []
    monkeypatch.setattr(cli, "run_cells", lambda missing, *unused: trained.extend(missing) or [])
    monkeypatch.setattr(cli, "prepare_data", lambda *unused: None)
    cli.run_study(softmax)
    assert trained == softmax
    changed = (
        r"out holds cells of other data/tiny than there are now, such as that of tiny/elu/seed1\.json; "
        "choose another --out, or move the earlier records away"
    )
    monkeypatch.setattr(cli, "prepare_data", lambda *unused: (data / "train.idx").write_text("others"))
    for _ in ("changed by the preparation", "changed before"):
        with pytest.raises(UserError, match=changed):
            cli.run_study(softmax)
    assert trained == softmax


def test_a_start_that_the_command_names_is_not_an_earlier_setting(study_with, tmp_path):
    study = study_with(start="roberta_short")
    start = {"path": "a.pt", "fingerprint": "a"}
    [cell] = cells(study, {"method": ["elu"]}, out=tmp_path, start=Path(__file__))
    write_record(cell, {**made_up("elu", 1, loss_nats=0.1), "start": start})
    assert "earlier settings" not in write_page(study, shown_records(study, tmp_path))


def test_the_page_of_another_study_is_not_replaced(study_file, study_with, tmp_path):
    out, study = tmp_path / "out", read_study(study_file)
    written(study, out)
    publish(study, out)
    page = (out / "README.md").read_text()
    renamed = study_with(about="The same study, called otherwise")
    publish(renamed, out)
    assert "called otherwise" in (out / "README.md").read_text()
    (out / "README.md").write_text(page)
    other = replace(renamed, name="other")
    for path in out.rglob("seed*.json"):
        write_json(path.parent / "seed9.json", {**json.loads(path.read_text()), "study": "other"})
    with pytest.raises(UserError, match=r"is the page of the study tiny; choose another --out"):
        check_out(cells(other, out=out))
    assert (out / "README.md").read_text() == page


@pytest.mark.parametrize("is_stored", [False, True])
def test_the_page_of_another_study_of_the_same_title_is_not_replaced(study_file, tmp_path, is_stored):
    study, out = read_study(study_file), tmp_path / "out"
    written(study, out)
    if is_stored:
        (out / STORE).touch()
    publish(study, out)
    check_out(cells(study, out=out))
    with pytest.raises(UserError, match=r"is the page of the study tiny; choose another --out"):
        check_out(cells(replace(study, name="other"), out=out))
    for path in [*out.rglob("seed*.json"), out / STORE]:
        path.unlink(missing_ok=True)
    check_out(cells(replace(study, name="other"), out=out))


def test_a_record_moved_meanwhile_says_nothing_of_the_page(study_file, study_with, tmp_path, monkeypatch):
    """Another process has just gathered it into the store."""
    study = read_study(study_file)
    written(study, tmp_path)
    publish(study, tmp_path)
    moved = next(tmp_path.rglob("seed*.json"))
    opened = Path.is_file

    def is_file(path):
        if path == moved:
            path.unlink(missing_ok=True)
        return opened(path)

    monkeypatch.setattr(Path, "is_file", is_file)
    check_replaceable(study_with(about="The same study, called otherwise"), [tmp_path / "README.md"])
    assert not moved.exists()


@pytest.mark.parametrize(
    ("notes", "why"),
    [("{{settings.nothing.here}}", "no attribute 'nothing'"), ("{{1 / 0}}", "division by zero")],
)
def test_notes_that_cannot_be_filled_in(notes, why, study_with):
    said = f"tiny.yaml: notes cannot be filled in from the record tiny/elu/seed1.json: .*{why}"
    with pytest.raises(UserError, match=said):
        write_page(study_with(notes=notes), RECORDS)


def test_expressions():
    record = {
        "found": {"valid": {"bits": 2}, "right": True},
        "training": {"seconds": 3.0},
        "cell": {"seed": 4},
    }
    for text, value in (("valid.bits", 2), ("100*valid.bits", 200), ("1e-1*seconds", 0.3), ("cell.seed", 4)):
        assert parse_expression(text, "here")(record) == pytest.approx(value)
    for text in ("right", "valid", "nothing", "valid.bits.more"):
        assert parse_expression(text, "here")(record) is None


def test_a_figure_that_is_nan_is_none_and_never_the_best():
    records = [made_up("elu", 1, loss_nats=math.nan), made_up("softmax", 1, loss_nats=3.0)]
    best = Best("method", parse_expression("loss_nats", "here"), "lowest")
    assert [record["cell"]["method"] for record in best_records(best, records)] == ["softmax"]


def test_the_index_counts_the_verdicts_of_a_page():
    """Also of a study that shows only the best choice of an axis; claims that were not run do not count."""
    item = {"paper": "TransNormer", "item": "Table 5", "study": "roberta_glue", "note": ""}
    lines = (ROOT / "results" / item["study"] / "README.md").read_text().splitlines()
    claims = [line.split("|") for line in lines if "| TransNormer, Table 5 |" in line]
    counted = Counter(outcome.strip() for _, _, _, _, outcome, _, _ in claims if outcome != " not run ")
    assert verdict_of(item) == ", ".join(f"{count} {outcome}" for outcome, count in counted.items())


def test_the_index_names_the_study_of_a_verdict_where_there_are_several():
    item = {"paper": "TransNormer", "item": "Table 9", "study": "ablations ablations_long", "note": "a note"}
    both, note = verdict_of(item), item.pop("note")
    each = [verdict_of({**item, "study": name, "note": ""}) for name in item["study"].split()]
    assert both == f"ablations: {each[0]}; ablations_long: {each[1]}; {note}"
    assert page_of(item) == ", ".join(f"[{name}]({name}/README.md)" for name in item["study"].split())


def test_a_record_that_another_process_has_just_stored_is_no_broken_file(study_file, tmp_path, monkeypatch):
    study, out = read_study(study_file), tmp_path / "out"
    written(study, out)

    def stored_meanwhile(path):
        path.unlink()
        raise UserError(f"{path} cannot be read as JSON")

    monkeypatch.setattr("lab.files.read_json", stored_meanwhile)
    assert records.loose_records(out, study) == {}


def test_a_folder_with_a_store_takes_the_records_into_it(study_file, tmp_path):
    study, out = read_study(study_file), tmp_path / "out"
    written(study, out)
    before, files = read_records(out, study), sorted(out.rglob("seed*.json"))
    (out / STORE).touch()
    assert set(files) <= set(publish(study, out, check=True)) and all(map(Path.is_file, files))
    publish(study, out)
    assert not any(map(Path.exists, files)) and publish(study, out, check=True) == []
    assert read_records(out, study) == before
    found = [record for cell in cells(study, seeds=3, out=out) if (record := cell.record())]
    assert len(found) == len(before) and all(record in before for record in found)


def test_a_picture_shows_the_curves_of_the_store(study_file, tmp_path):
    study, record = read_study(study_file), made_up("elu", 1, loss_nats=0.1)
    record["training"]["curves"]["train"] = [[update, 1 / update] for update in range(1, 200)]
    written(study, tmp_path, [record])
    (tmp_path / STORE).touch()
    assert publish(study, tmp_path)
    [kept] = read_records(tmp_path, study)
    assert len(kept["training"]["curves"]["train"]) == 100 and publish(study, tmp_path, check=True) == []


def test_one_process_at_a_time_publishes_into_a_folder(study_file, tmp_path, monkeypatch):
    monkeypatch.setattr("lab.study.page.SECONDS_TO_WRITE", 0)
    study = read_study(study_file)
    written(study, tmp_path)
    with run_lock(tmp_path), pytest.raises(UserError, match="is in use by process"):
        publish(study, tmp_path)
    assert not (tmp_path / "README.md").exists()
    assert tmp_path / "README.md" in publish(study, tmp_path, check=True)
    assert publish(study, tmp_path) and not publish(study, tmp_path)
    assert not publish(study, tmp_path / "empty") and not (tmp_path / "empty").exists()
