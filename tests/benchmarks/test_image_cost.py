"""Drawing images: the work of a case, cases left out, the report, a tiny run. No times are judged."""

import pytest

from benchmarks import image_cost
from benchmarks.image_cost import (
    WAYS,
    build_image_model,
    by_images,
    latency_table,
    markdown,
    measure_sampling,
    sum_of_parabola,
)
from lab.papers import read_table
from tests.benchmarks import records

[TINY] = image_cost.TINY.values()


def results(seconds, names=("softmax-recompute", "softmax", "elu")):
    """Results of MNIST on a CPU; `seconds(name, batch)` is None for a way that ran out of memory."""

    def answer(case):
        spent = seconds(case["architecture"], case["batch"])
        if spent is None:
            return "out of memory"
        estimated = WAYS[case["architecture"]].recompute
        peak = 2**20 * case["batch"]
        return {"seconds": spent, "estimated": estimated, "spent_s": spent, "peak_bytes": peak}

    return records.results(image_cost, names, answer, "--images", "mnist")


def test_the_sum_is_exact_for_parabolas():
    def time(n):
        return 3 + 0.5 * n + 0.01 * n * n

    for count in (16, 784):
        points = {n: time(n) for n in (count // 8, count // 2, count)}
        assert sum_of_parabola(points, count) == pytest.approx(sum(map(time, range(1, count + 1))))


@pytest.mark.parametrize("name", WAYS)
def test_every_way_draws_images(name):
    case = {"architecture": name, "images": "tiny", "batch": 2, "device": "cpu"}
    case["sizes"] = {"tiny": TINY.as_dict()}
    found = measure_sampling(case)
    assert found["seconds"] > 0 and found["estimated"] is name.endswith("recompute")


def test_models_have_the_papers_sizes():
    """As many parameters as the authors' code has, and four special symbols in the embedding."""
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


def test_ratios_and_the_papers_beside_them():
    times = {
        "softmax-recompute": lambda batch: 50.0 * batch,
        "softmax": lambda batch: 5.0 + batch / 2,
        "elu": lambda batch: 4.0 if batch < 1000 else None,
    }
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
    assert cells[8:] == [
        f"{paper['linear']:g}",
        f"{paper['linear'] / paper['softmax']:.3g}",
        f"{paper['linear'] / paper['stateful-softmax']:.3g}",
    ]
    assert "| 0.02* | 0.02* |" in text and "out of memory" in text


def test_one_image_beside_the_papers_seconds_on_such_a_device():
    found = results(lambda name, batch: {"softmax-recompute": 50.0, "softmax": 5.0, "elu": 4.0}[name] * batch)
    for device in ("cpu", "cuda"):
        found["settings"]["device"] = device
        column = "cpu_seconds" if device == "cpu" else "gpu_seconds"
        paper = {row["method"]: float(row[column]) for row in read_table("linear_05a_mnist_latency")}
        lines = latency_table(by_images(found), "mnist").splitlines()
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


def test_one_kind_of_images_has_files_of_its_own():
    """It cannot join the results of both, whose settings are others."""
    names = []
    for words in ([], ["--images", "cifar10,mnist"], ["--images", "mnist"], ["--images", "mnist", "--quick"]):
        arguments = image_cost.BENCHMARK.parse(words)
        names.append(image_cost.BENCHMARK.results_path(arguments, "cpu").name)
    both, mnist = "image_cost_cpu.json", "image_cost_mnist_cpu.json"
    assert names == [both, both, mnist, "image_cost_mnist_quick.json"]
