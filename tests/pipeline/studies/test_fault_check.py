"""fault_check.sh counts what pytest reports."""

from pipeline.studies.fault_check import counts

REPORT = """<testsuites><testsuite>
<testcase name="a"><properties><property name="fault" value="disk full"/></properties></testcase>
<testcase name="b"><properties><property name="fault" value="disk full"/></properties><failure/></testcase>
<testcase name="c"><properties><property name="fault" value="killed"/></properties></testcase>
<testcase name="d"><skipped/></testcase>
<testcase name="e"><error/></testcase>
</testsuite></testsuites>"""


def test_survivors_of_each_kind(tmp_path):
    (tmp_path / "report.xml").write_text(REPORT)
    assert counts(tmp_path / "report.xml") == {
        "disk full": {"broken": 2, "survived": 1, "failed": ["b"]},
        "killed": {"broken": 1, "survived": 1, "failed": []},
        "not started": {"broken": 1, "survived": 0, "failed": ["e"]},
    }
