"""The goals for the operator's speed and what a run says of each: met, not met, or not measured."""

import statistics

SOFTMAX, QUADRATIC = "softmax (SDPA)", "quadratic"
FAST, FAST_TUNED = "fast-transformers", "fast-transformers, tuned build"
FLA = "flash-linear-attention"
FORWARD, BOTH = "forward", "forward + backward"
ONE_HEAD = "one head, forward + backward"
DECODING, CACHE = "decoding", "softmax over a cache"
Row = tuple[str, str, str]


def goals(result: dict) -> list[Row]:
    """(goal, measured, verdict) for what this run could measure; ratios are of medians.

    `result["main"]` is the name of the rows that the goals are for.
    """
    device, main = result["settings"]["device"], result["main"]
    middle = {
        (r["part"], r["heap"], r["length"], r["name"]): statistics.median(r["ms"]) for r in result["records"]
    }
    rows: list[Row] = []

    def add(goal: str, value: float, bound: float, at_least: bool = True) -> None:
        met = value >= bound if at_least else value <= bound
        sign = "at least" if at_least else "at most"
        rows.append((f"{goal}: {sign} {bound:g}", f"{value:.2f}", "met" if met else "not met"))

    def ratio(goal: str, above: tuple, below: tuple, bound: float) -> None:
        if above in middle and below in middle:
            add(goal, middle[above] / middle[below], bound)

    for part, heap, length in sorted({key[:3] for key in middle}):
        where = f"{part}, N = {length:,}" + (f", heap {heap}" if heap else "")
        here = (part, heap, length)
        if part in (FORWARD, BOTH):
            least = 2.8 if heap == "stock" else 4.5
            ratio(f"{where}: times {FAST}", (*here, FAST), (*here, main), least)
            ratio(f"{where}: times {FAST_TUNED}", (*here, FAST_TUNED), (*here, main), 2)
            ratio(f"{where}: times {FLA}", (*here, FLA), (*here, main), 2)
        if part == ONE_HEAD:
            ratio(f"{where}: times {FAST}", (*here, FAST), (*here, main), 7)
        if part == FORWARD and device == "cpu":
            ratio(f"{where}: PyTorch path, times {FAST}", (*here, FAST), (*here, "ours, torch"), 1.4)
            ratio(f"{where}: bfloat16, times float32", (*here, main), (*here, f"{main}, bfloat16"), 1)
        if part == FORWARD and device == "cuda" and length in (8192, 16384):
            least = 12 if length == 8192 else 24
            ratio(f"{where}: times {SOFTMAX}", (*here, SOFTMAX), (*here, main), least)
    rows += _floors(result, main) + _decoding(middle)
    for name, tensors in result["memory"].items():
        if name == main:
            most = 4.1 if device == "cpu" else 4.3  # the states that the CUDA kernels keep
            add("peak memory above the inputs, forward + backward, in tensors", tensors, most, at_least=False)
    return rows


def _floors(result: dict, main: str) -> list[Row]:
    """On a GPU: the time against that of moving every tensor once."""
    if result["settings"]["device"] != "cuda":
        return []
    rows = []
    for r in result["records"]:
        if r["name"] == main and "of floor" in r and r["length"] >= 8192:
            bound, value = 1.5 if r["part"] == FORWARD else 2.0, 1 / r["of floor"]
            goal = f"{r['part']}, N = {r['length']:,}: times the byte floor: at most {bound:g}"
            rows.append((goal, f"{value:.2f}", "met" if value <= bound else "not met"))
    return rows


def _decoding(middle: dict) -> list[Row]:
    found = {(length, name): ms for (part, _, length, name), ms in middle.items() if part == DECODING}
    rows = []
    for name, least in (("step, the operator itself", 1000), ("step", 100)):
        if (32768, name) in found:
            value = found[32768, CACHE] / found[32768, name]
            goal = f"decoding at 32,768, {name}: times {CACHE}: at least {least}"
            rows.append((goal, f"{value:.0f}", "met" if value >= least else "not met"))
    if (32768, "step") in found:
        value = found[32768, "step"] / found[1024, "step"]
        goal = "decoding at 32,768 over 1,024: at most 1.05"
        rows.append((goal, f"{value:.2f}", "met" if value <= 1.05 else "not met"))
    return rows
