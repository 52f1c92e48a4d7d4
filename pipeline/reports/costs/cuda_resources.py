"""From nvcc's report on the CUDA kernels, and their machine code, to records and tables."""

import re
from typing import Any

from pipeline.reports.tables import markdown_table

DTYPES = {"f": "float32", "Bf16": "bfloat16", "Half": "float16"}
NORMALISERS = ("none", "forward", "dq", "dkdv")  # as in csrc/cuda/scan.h
REGISTERS, WARP = 65_536, 32  # of a multiprocessor; a thread's are given out by eight
_KERNEL = re.compile(r"\d+((?:scan|sweep|step)_kernel)I(\S+)EEvNS")
_ARGUMENT = re.compile(r"NS\d*_\d+(Bf16|Half)E|L(?:[ib]|NS\d*_\d+[A-Za-z]+E)(\d+)E|(f)")
_REPORT = re.compile(
    r"Compiling entry function '(\S+)' for '(\S+)'.*?(\d+) bytes spill stores.*?Used (\d+) registers",
    re.DOTALL,
)


def parse_name(mangled: str) -> dict[str, Any] | None:
    """What a kernel's mangled name says of its instance; None for other functions.

    Two kinds of kernels are known: `scan_kernel` of the present sources, and `sweep_kernel` of those before
    them, which handled every normaliser.
    """
    found = _KERNEL.search(mangled)
    if found is None:
        return None
    kind, *_ = found.groups()
    dtype, *rest = [a or b or c for a, b, c in _ARGUMENT.findall(found[2])]
    record: dict[str, Any] = {"kernel": kind, "dtype": DTYPES[dtype]}
    numbers = [int(x) for x in rest]
    if kind == "scan_kernel":
        normaliser, columns, aligned, only_sums = numbers
        record |= {"normaliser": NORMALISERS[normaliser], "columns": 16 * columns}
        record |= {"aligned": bool(aligned), "only_sums": bool(only_sums)}
    elif kind == "sweep_kernel":
        record |= {"columns": 16 * numbers[0], "rows": 16 * numbers[1]}
    return record


def parse_report(report: str) -> dict[str, dict[str, Any]]:
    """Architecture, registers and spilled bytes of each kernel in the output of nvcc -Xptxas -v."""
    found = {}
    for name, arch, spilled, registers in _REPORT.findall(report):
        if (record := parse_name(name)) is not None:
            found[name] = {**record, "arch": arch, "registers": int(registers), "spilled": int(spilled)}
    return found


def count_instructions(machine_code: str) -> dict[str, dict[str, int]]:
    """Instructions between the head and the end of each kernel's loop over chunks, from cuobjdump -sass.

    That is the innermost loop with the most matrix products. Code in it that hardly ever runs, for rows that
    are not finite, counts; so do loops in it, once.
    """
    found = {}
    for body in machine_code.split("Function : ")[1:]:
        code = [(int(at, 16), text) for at, text in re.findall(r"/\*([0-9a-f]{4,})\*/\s+(\S.*?)\s*;", body)]
        products = [at for at, text in code if "HMMA" in text]
        loops = []
        for at, text in code:
            jump = re.search(r"\bBRA\b.*\b0x([0-9a-f]+)$", text)
            if jump and (head := int(jump[1], 16)) < at:
                loops.append((sum(head <= x <= at for x in products), head - at, head, at))
        if products and loops:
            within, _, head, end = max(loops)
            found[body.split()[0]] = {
                "instructions": sum(head <= at <= end for at, _ in code),
                "matrix_products": within,
            }
    return found


def blocks_by_registers(record: dict[str, Any]) -> int:
    """Blocks of a `scan_kernel` that fit a multiprocessor's registers: a warp for 16 columns."""
    of_warp = -(-record["registers"] // 8) * 8 * WARP
    return REGISTERS // of_warp // (record["columns"] // 16)


def markdown(result: dict[str, Any]) -> str:
    """The report's text."""
    about = result["environment"]
    kernels = [x for x in result["kernels"] if x.get("registers", 0) > 8 and x["kernel"] != "step_kernel"]
    parts = [
        f"CUDA kernels of commit {result['commit']} as {result['nvcc']} compiles them ({about['date']}, no "
        "GPU): registers of a thread, bytes spilled, blocks that fit the registers of a multiprocessor, and "
        "instructions of the loop over chunks (matrix products among them), with the code for rows that are "
        "not finite, which hardly ever runs. Nothing here is a time."
    ]
    for arch in sorted({x["arch"] for x in kernels}):
        rows = [_row(x) for x in kernels if x["arch"] == arch and not x.get("only_sums")]
        header = ["Kernel", "Type", "Registers", "Spilled", "Blocks", "Instructions", "Products"]
        parts.append(f"### {arch}\n\n" + markdown_table(header, sorted(rows)))
    return "\n\n".join(parts) + "\n"


def _row(record: dict[str, Any]) -> list[str]:
    name = f"D {record['columns']:>3}"
    blocks = ""
    if record["kernel"] == "scan_kernel":
        aligned = "aligned" if record["aligned"] else "any"
        job = "no normaliser" if record["normaliser"] == "none" else f"normaliser, {record['normaliser']}"
        name += f", {aligned}, {job}"
        blocks = str(blocks_by_registers(record))
    else:
        name += f", every job, {record['rows']} rows"
    counts = [str(record.get(key, "")) for key in ("instructions", "matrix_products")]
    return [name, record["dtype"], str(record["registers"]), str(record["spilled"]), blocks, *counts]
