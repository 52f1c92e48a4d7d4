"""fault_check.sh counts the results of pytest."""

import os
import subprocess

from lab.checks import fault_check
from lab.checks.fault_check import counts, run_tests
from lab.commands.make_results import faults
from lab.files import BENCHMARKS, write_json

REPORT = """<testsuites><testsuite>
<testcase name="a"><properties><property name="fault" value="disk full"/></properties></testcase>
<testcase name="b"><properties><property name="fault" value="disk full"/></properties><failure/></testcase>
<testcase name="c"><properties><property name="fault" value="killed"/><property name="times" value="5"/>
</properties></testcase>
<testcase name="d"><skipped/></testcase>
<testcase name="e"><error/></testcase>
</testsuite></testsuites>"""


def test_survivors_of_each_kind(tmp_path):
    (tmp_path / "report.xml").write_text(REPORT)
    found = counts(tmp_path / "report.xml")
    assert found == {
        "disk full": {"broken": 2, "survived": 1, "failed": ["b"]},
        "killed": {"broken": 5, "survived": 5, "failed": []},
        "not started": {"broken": 1, "survived": 0, "failed": ["e"]},
    }
    write_json(tmp_path / "record.json", {"faults": found, "hardware": {"cpu": "a CPU"}, "threads": 2})
    counted = "disk full, 1 of 2; killed, 5 of 5; not started, 0 of 1"
    assert faults(tmp_path / "record.json") == f"Survived: {counted}. (a CPU, 2 threads)"


def test_the_command_says_how_many_were_tried(refused, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(fault_check, "run_tests", lambda rounds, report: report.write_text(REPORT))
    sentence = refused(fault_check, "--out", tmp_path / "record.json")
    assert "not every run survived" in sentence
    assert "8 faults tried, 6 survived" in capsys.readouterr().out
    sentence = refused(fault_check, "--rounds", 1, "--out", tmp_path / "record.json")
    assert "holds another result, with rounds 6 instead of 1; move it away" in sentence


def test_the_record_tells_the_threads_of_the_runs(tmp_path, monkeypatch):
    runs = []
    monkeypatch.setattr(subprocess, "run", lambda command, **how: runs.append(how["env"]))
    monkeypatch.setenv("OMP_NUM_THREADS", "7")  # restored afterwards
    del os.environ["OMP_NUM_THREADS"]
    (tmp_path / "report.xml").touch()
    run_tests(2, tmp_path / "report.xml")
    assert runs[0]["FAULT_ROUNDS"] == "2"
    assert os.environ["OMP_NUM_THREADS"] == runs[0]["OMP_NUM_THREADS"] == "1"


def test_it_writes_to_runs():
    assert fault_check.parse([]).out == BENCHMARKS / "fault_check.json"
