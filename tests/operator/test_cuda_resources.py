"""What nvcc makes of the CUDA kernels: they compile, and what they ask of a multiprocessor lets enough blocks
share it."""

import json
import shutil

import pytest

import build_machine
from benchmarks.cuda_resources import (
    blocks_by_registers,
    compile_report,
    count_instructions,
    markdown,
    parse_arguments,
    parse_name,
    parse_report,
)
from lab.errors import UserError


def nvcc():
    try:
        return build_machine.nvcc()
    except build_machine.Skipped:
        return None


NVCC = nvcc()
# At most, in a loop and in both of the backward pass, without and with its normaliser; float16 scales states.
INSTRUCTIONS = {"bfloat16": [(900, 1050), (900, 1650)], "float16": [(950, 1300), (1120, 1950)]}
BLOCKS = {128: 2, 256: 1}  # of a multiprocessor, by columns; three of narrower heads
DECAYS_SPILL = 160
NAME = "_ZN3cla4cuda15backward_kernelINS0_4HalfELb1ELi4ELb1ELb0EEEvNS0_14BackwardLaunchE"
REPORT = f"""
ptxas info    : Compiling entry function '{NAME}' for 'sm_80'
ptxas info    : Function properties for {NAME}
    16 bytes stack frame, 12 bytes spill stores, 20 bytes spill loads
ptxas info    : Used 161 registers, used 1 barriers, 16 bytes cumulative stack size
ptxas info    : Compiling entry function 'other' for 'sm_80'
    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 8 registers
"""
CODE = """
		Function : NAME
        /*0000*/                   MOV R1, c[0x0][0x28] ;   /* 0x00000a00ff017624 */
        /*0010*/                   HMMA.16816.F32.BF16 R4, R8, R12, R4 ;
        /*0020*/               @P0 BRA 0x10 ;
        /*0030*/                   HMMA.16816.F32.BF16 R4, R8, R12, R4 ;
        /*0040*/                   HMMA.16816.F32.BF16 R4, R8, R12, R4 ;
        /*0050*/                   IADD3 R1, R1, 0x1, RZ ;
        /*0060*/              @!P0 BRA 0x50 ;
        /*0070*/               @P1 BRA 0x30 ;
        /*0080*/                   BRA 0x0 ;
        /*0090*/                   EXIT ;
"""
# The loop is left in its middle, has code behind its end, and in it code that hardly ever runs.
SCATTERED = """
		Function : NAME
        /*0000*/                   MOV R1, c[0x0][0x28] ;
        /*0010*/                   HMMA.16816.F32.BF16 R4, R8, R12, R4 ;
        /*0020*/               @P1 BRA 0x80 ;
        /*0030*/               @P0 BRA 0x70 ;
        /*0040*/                   MOV R1, R2 ;
        /*0050*/                   MOV R2, R3 ;
        /*0060*/                   EXIT ;
        /*0070*/                   BRA 0x10 ;
        /*0080*/               @P2 BRA 0xb0 ;
        /*0090*/                   PMTRIG 0x1 ;
        /*00a0*/                   HMMA.16816.F32.BF16 R4, R8, R12, R4 ;
        /*00b0*/                   BRA 0x30 ;
"""


def test_a_report_is_read():
    (kernel,) = parse_report(REPORT).values()
    assert kernel == {
        **{"kernel": "backward_kernel", "dtype": "float16", "normalize": True, "columns": 64},
        **{"aligned": True, "arch": "sm_80", "registers": 161, "spilled": 12},
    }
    assert blocks_by_registers(kernel) == 3
    assert parse_name("_ZN3cla5otherEv") is None
    assert parse_name(NAME.replace("ELb0E", "ELb1E"))["decayed"]


@pytest.mark.parametrize(
    ("name", "instructions", "products"),
    [(NAME, [2, 5], [1, 2]), (NAME.replace("backward", "forward"), [5], [2])],
)
def test_instructions_of_the_loops_over_chunks(name, instructions, products):
    """Each loop over chunks with the loops inside it, without the backward pass's outer loop."""
    found = count_instructions(CODE.replace("NAME", name))
    assert found == {name: {"instructions": instructions, "matrix_products": products}}


def test_instructions_of_a_scattered_loop():
    """Only what leads back to its head counts, wherever it lies, and nothing to which a mark alone leads."""
    (found,) = count_instructions(SCATTERED.replace("NAME", NAME.replace("backward", "forward"))).values()
    assert found == {"instructions": [6], "matrix_products": [1]}


def test_the_table():
    (kernel,) = parse_report(REPORT).values()
    small = {**kernel, "registers": 8}  # an instance that its architecture does not use
    about = {"environment": {"date": "2026-01-02"}, "commit": "abc", "nvcc": "release 13.0"}
    counts = {"instructions": [600, 900], "matrix_products": [50, 66]}
    text = markdown({**about, "kernels": [{**kernel, **counts}, small]})
    assert "commit abc as release 13.0" in text and "### sm_80" in text
    assert "| D  64, aligned, backward, normaliser | float16 | 161 | 12 | 3 | 600 + 900 | 50 + 66 |" in text
    assert text.count("| D ") == 1


def test_the_committed_table_holds_what_the_documents_say(root):
    kernels = json.loads((root / "results/measured/cuda/cuda_resources.json").read_text())["kernels"]
    short = [
        x for x in kernels if x["dtype"] != "float32" and x["kernel"] in ("forward_kernel", "backward_kernel")
    ]
    assert {x["arch"] for x in short} == {"sm_80", "sm_90a"}
    most = 0
    for kernel in short:
        wide = kernel["columns"] >= 128
        assert blocks_by_registers(kernel) >= BLOCKS.get(kernel["columns"], 3), kernel
        decayed = "decayed" in kernel
        assert wide or kernel["spilled"] <= (DECAYS_SPILL if decayed else 0), kernel
        if kernel["columns"] == 64 and kernel["aligned"] and kernel["dtype"] == "bfloat16" and not decayed:
            most = max(most, *kernel["instructions"])
    assert most <= 900 and f"at most {most} instructions" in (root / "docs/operator.md").read_text()


def test_what_is_missing_is_one_sentence(tmp_path):
    with pytest.raises(UserError, match="no .cu files in"):
        parse_arguments(["--sources", str(tmp_path)])
    with pytest.raises(UserError, match="nvcc fails on broken.cu"):
        compile_report("false", tmp_path / "broken.cu", "80")


@pytest.mark.skipif(NVCC is None, reason="no nvcc")
@pytest.mark.slow
@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("arch", "dtype", "spilled"), [("75", "Half", 160), ("80", "Half", 220), ("90a", "Bf16", 220)]
)
def test_blocks_share_a_multiprocessor(root, arch, dtype, spilled):
    """Three blocks of heads with 64 columns; two of those with 128, which may spill so many bytes."""
    sources = root / "causal_linear_attention" / "csrc" / "cuda"
    kernels = compile_report(
        *(NVCC, root / "tests" / "cpp" / "resources.cu", arch, f"-I{sources}", f"-DCLA_TYPE={dtype}")
    )
    assert len(kernels) == 7
    for kernel in kernels:
        wide = kernel["columns"] >= 128
        assert blocks_by_registers(kernel) >= BLOCKS.get(kernel["columns"], 3), kernel
        # On 7.5, whose matrix instructions are narrower, a handful of bytes go through the first-level cache.
        allowed = spilled if wide else 64 if arch == "75" else 0
        assert kernel["spilled"] <= (DECAYS_SPILL if "decayed" in kernel else allowed), kernel
        if arch != "75" and not wide and "decayed" not in kernel:  # counted where cuobjdump is found
            weighted = kernel["normalize"] and kernel["kernel"] == "backward_kernel"
            limit, limit_of_both = INSTRUCTIONS[kernel["dtype"]][weighted]
            loops = kernel.get("instructions", [0])
            assert max(loops) <= limit and sum(loops) <= limit_of_both, kernel
    if arch != "75" and shutil.which("cuobjdump") is None:
        pytest.skip("registers and spills hold; no cuobjdump to count instructions with")
