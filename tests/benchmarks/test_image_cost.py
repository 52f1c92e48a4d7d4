"""Drawing images: what a case measures, which are left out, the report, a tiny run. No times are judged."""

import json

import pytest

from benchmarks import image_cost
from benchmarks.image_cost import (
    WAYS,
    build_image_model,
    latency_table,
    markdown,
    measure_sampling,
    plot,
    sum_of_parabola,
)
from pipeline.errors import UserError
from pipeline.papers import read_table
from tests.benchmarks.test_lm_cost import SESSION

[TINY] = image_cost.TINY.values()


def results(seconds, names=("softmax-recompute", "softmax", "elu")):
    """Results of MNIST on a CPU; `seconds(name, batch)` is None for a way that ran out of memory."""
    settings = image_cost.settings_for("cpu", False, list(names), ["mnist"])
    records = []
    for case in image_cost.cases_of(settings):
        spent = seconds(case["architecture"], case["batch"])
        record = {**case, "session": 0, "status": "out of memory"}
        if spent:
            estimated = WAYS[case["architecture"]].recompute
            record |= {"status": "ok", "seconds": spent, "estimated": estimated, "spent_s": spent}
            record["peak_bytes"] = 2**20 * case["batch"]
        records.append(record)
    return {"settings": settings, "sessions": [SESSION], "records": records}


def test_the_sum_is_exact_for_parabolas():
    def time(n):
        return 3 + 0.5 * n + 0.01 * n * n

    for count in (16, 784):
        points = {n: time(n) for n in (count // 8, count // 2, count)}
        assert sum_of_parabola(points, count) == pytest.approx(sum(map(time, range(1, count + 1))))


@pytest.mark.parametrize("name", WAYS)
def test_every_way_draws_images(name):
    case = {"architecture": name, "images": "tiny", "batch": 2, "device": "cpu", "size": TINY.as_dict()}
    found = measure_sampling(case)
    assert found["seconds"] > 0 and found["estimated"] is name.endswith("recompute")


def test_models_have_the_papers_sizes():
    """Those of the authors' code, and four special symbols in the embedding."""
    for images, parameters in (("mnist", 6_359_070), ("cifar10", 12_677_150)):
        model, _ = build_image_model("elu", images, image_cost.SIZES[images], "meta")
        assert sum(p.numel() for p in model.parameters()) == parameters + 4 * 128


def test_larger_batches_are_left_out_where_a_smaller_one_was_too_much():
    case = {"architecture": "elu", "images": "mnist", "batch": 16}
    quick = {**case, "batch": 4, "status": "ok", "spent_s": 100.0}
    assert not image_cost.is_hopeless({"records": [quick]}, case, 600)
    assert image_cost.is_hopeless({"records": [{**quick, "spent_s": 200.0}]}, case, 600)
    assert image_cost.is_hopeless({"records": [{**quick, "status": "time limit"}]}, case, 600)
    for other in ({"architecture": "softmax"}, {"images": "cifar10"}, {"batch": 64}):
        assert not image_cost.is_hopeless({"records": [{**quick, "spent_s": 200.0, **other}]}, case, 600)


def test_ratios_and_the_papers_beside_them(tmp_path):
    times = {"softmax-recompute": lambda batch: 50.0 * batch, "softmax": lambda batch: 5.0 + batch / 2,
             "elu": lambda batch: 4.0 if batch < 1000 else None}  # fmt: skip
    found = results(lambda name, batch: times[name](batch))
    text = markdown(found)
    rows = {line.split("|")[1].strip(): line.split("|")[2:-1] for line in text.splitlines() if "|" in line}
    cells = [cell.strip() for cell in rows["1+elu, state"]]
    paper = {
        row["method"]: float(row["images_per_second"]) for row in read_table("linear_04a_mnist_throughput")
    }
    # One image in 4 s; 256 at once are 64 a second, softmax never gets beyond 2, nor 1 / 50 without a cache.
    assert cells[:4] == ["4", "64", "256", "256"] and cells[4:7] == ["12.5", "3.2e+03", "1.38"]
    assert float(cells[7]) == pytest.approx(32, rel=0.01)
    assert cells[8:] == [f"{paper['linear']:g}", f"{paper['linear'] / paper['softmax']:.3g}",
                         f"{paper['linear'] / paper['stateful-softmax']:.3g}"]  # fmt: skip
    assert "| 0.02* | 0.02* |" in text and "out of memory" in text
    plot(found, tmp_path / "speed.png")
    assert (tmp_path / "speed.png").read_bytes().startswith(b"\x89PNG")


def test_one_image_beside_the_papers_seconds_on_such_a_device():
    found = results(lambda name, batch: {"softmax-recompute": 50.0, "softmax": 5.0, "elu": 4.0}[name] * batch)
    for device in ("cpu", "cuda"):
        found["settings"]["device"] = device
        column = "cpu_seconds" if device == "cpu" else "gpu_seconds"
        paper = {row["method"]: float(row[column]) for row in read_table("linear_05a_mnist_latency")}
        lines = latency_table(found, "mnist").splitlines()
        for line, (way, seconds, name) in zip(
            lines[4:],
            [
                ("softmax, prefix again", 50, "softmax"),
                ("softmax, cache", 5, "stateful-softmax"),
                ("1+elu, state", 4, "linear"),
            ],
            strict=True,
        ):
            ratio = f"{paper[name] / paper['linear']:.3g}"
            assert line == f"| {way} | {seconds} | {seconds / 4:.3g} | {paper[name]} | {ratio} |"


def test_what_was_not_measured_is_a_dash(tmp_path):
    found = {**results(lambda name, batch: 1.0), "records": []}
    assert "| 1+elu, state | – | – |" in markdown(found)
    plot(found, tmp_path / "speed.png")


@pytest.mark.parametrize(
    ("words", "sentence"),
    [(["--images", "svhn"], "--images names 'svhn'"), (["--architectures", "x"], "unknown architecture x")],
)
def test_a_wrong_command_line_is_refused_in_a_sentence(words, sentence):
    with pytest.raises(UserError, match=sentence):
        image_cost.parse_arguments(words)


def test_one_kind_of_images_has_files_of_its_own():
    """It cannot join the results of both, whose settings are others."""
    names = []
    for words in ([], ["--images", "cifar10,mnist"], ["--images", "mnist"], ["--images", "mnist", "--quick"]):
        arguments = image_cost.parse_arguments(words)
        names.append(image_cost.benchmark_for(arguments).results_path(arguments, "cpu").name)
    both, mnist = "image_cost_cpu.json", "image_cost_mnist_cpu.json"
    assert names == [both, both, mnist, "image_cost_mnist_quick.json"]


def test_quick_run_resumes(tmp_path, measured_here, capsys):
    out = tmp_path / "cost.json"
    words = ["--quick", "--device", "cpu", "--architectures", "elu", "--out", str(out)]
    for done in (0, 2):
        assert image_cost.run(image_cost.parse_arguments(words)) == 0
        assert f"2 cases on cpu, {done} done before" in capsys.readouterr().out
    assert [record["batch"] for record in json.loads(out.read_text())["records"]] == [1, 4]
