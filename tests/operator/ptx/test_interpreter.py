"""The interpreter itself, on small kernels written by hand: its results and the errors that it finds."""

import ctypes
import math

import numpy as np
import pytest

from tests.operator.ptx.machine import ORDERS, Launch, Machine
from tests.operator.ptx.memory import Fault
from tests.operator.ptx.parser import parse

HEAD = """
.version 9.0
.target sm_90a
.address_size 64
.extern .shared .align 128 .b8 memory[];
.func (.param .align 4 .b8 func_retval0[4]) three_times(
	.param .b32 three_times_param_0
)
{
	.reg .b32 %r<4>;
	ld.param.u32 %r1, [three_times_param_0];
	mul.lo.s32 %r2, %r1, 3;
	st.param.b32 [func_retval0+0], %r2;
	ret;
}
.visible .entry kernel(
	.param .align 8 .b8 kernel_param_0[8]
)
{
	.reg .pred %p<4>;
	.reg .f32 %f<4>;
	.reg .b32 %r<40>;
	.reg .b64 %rd<10>;
	ld.param.u64 %rd1, [kernel_param_0];
	mov.u32 %r1, %tid.x;
	mul.wide.s32 %rd2, %r1, 4;
	add.s64 %rd3, %rd1, %rd2;
	shl.b32 %r2, %r1, 2;
	mov.u32 %r3, memory;
	add.s32 %r4, %r3, %r2;
"""
TAIL = "\n\tret;\n}\n"
FROM_THE_OTHER_WARP = "xor.b32 %r5, %r4, 128; ld.shared.u32 %r6, [%r5]; st.global.u32 [%rd3], %r6;"
FROM_THE_NEXT_LANE = "xor.b32 %r5, %r4, 4; ld.shared.u32 %r6, [%r5]; st.global.u32 [%rd3], %r6;"
COPY = "cp.async.ca.shared.global [%r4], [%rd3], 4, 4; cp.async.commit_group;"


def run(body: str, order: str = "lowest", seed: int = 0, numbers: int = 64) -> tuple[np.ndarray, Machine]:
    """The kernel's array of 32-bit numbers, 0, 1, 2 … before, and the machine, with 64 threads."""
    data = np.arange(numbers, dtype=np.int32)
    at = data.ctypes.data
    parameter = bytes(ctypes.c_uint64(at))
    launch = Launch("kernel", parameter, 1, 64, 256, [(at, data.nbytes)])
    return data, Machine(parse(HEAD + body + TAIL), launch, order, seed).run(limit=2000)


@pytest.mark.parametrize("order", ORDERS)
def test_warps_that_diverge_meet_again(order):
    """Odd threads go another way; the shuffle after that needs all lanes."""
    body = """
	and.b32 %r5, %r1, 1; setp.eq.s32 %p1, %r5, 0; mov.u32 %r6, 100;
	@%p1 bra $EVEN;
	mov.u32 %r6, 200;
$EVEN:
	add.s32 %r7, %r6, %r1;
	shfl.sync.bfly.b32 %r8|%p2, %r7, 1, 31, -1;
	st.global.u32 [%rd3], %r8;"""
    found, machine = run(body, order)
    neighbour = np.arange(64) ^ 1
    assert (found == neighbour + np.where(neighbour % 2, 200, 100)).all()
    assert not machine.partial and not machine.races.found


def test_functions_and_guards():
    body = """
	{ // a call
	.param .b32 param0; st.param.b32 [param0+0], %r1;
	.param .align 4 .b8 retval0[4];
	call.uni (retval0), three_times, (param0);
	ld.param.b32 %r5, [retval0+0];
	}
	setp.lt.s32 %p1, %r1, 10;
	@!%p1 st.global.u32 [%rd3], %r5;"""
    found, _ = run(body)
    assert (found == np.where(np.arange(64) < 10, 1, 3) * np.arange(64)).all()


def test_quotients_and_remainders_of_negative_numbers():
    body = """
	sub.s32 %r5, %r1, 30; mov.u32 %r6, 7;
	div.s32 %r7, %r5, %r6; rem.s32 %r8, %r5, %r6;
	mad.lo.s32 %r9, %r7, 1000, %r8;
	st.global.u32 [%rd3], %r9;"""
    found, _ = run(body)
    expected = [math.trunc(x / 7) * 1000 + int(math.fmod(x, 7)) for x in range(-30, 34)]
    assert found.tolist() == expected


def test_rounding_and_order_of_halves():
    """1 + 2^-8 is a tie in bfloat16, 1 + 2^-11 in float16: both go to the even 1."""
    body = """
	mov.f32 %f1, 0f3F808000; mov.f32 %f2, 0f40000000; mov.f32 %f3, 0f3F801000;
	cvt.rn.bf16x2.f32 %r5, %f2, %f1;
	{ cvt.rn.f16x2.f32 %r6, %f2, %f3; }
	setp.eq.s32 %p1, %r1, 0; selp.b32 %r7, %r5, %r6, %p1;
	st.global.u32 [%rd3], %r7;"""
    found, _ = run(body)
    assert found[0] == 0x40003F80 and found[1] == 0x40003C00


@pytest.mark.parametrize(
    ("body", "race"),
    [
        ("st.shared.u32 [%r4], %r1; bar.sync 0; " + FROM_THE_OTHER_WARP, None),
        (
            "st.shared.u32 [%r4], %r1; bar.warp.sync -1; " + FROM_THE_OTHER_WARP,
            "read after write by another warp",
        ),
        ("st.shared.u32 [%r4], %r1; bar.warp.sync -1; " + FROM_THE_NEXT_LANE, None),
        ("st.shared.u32 [%r4], %r1; " + FROM_THE_NEXT_LANE, "read after write by another lane"),
        ("ld.shared.u32 %r6, [%r3]; st.shared.u32 [%r4], %r1;", "write after read by another"),
        ("st.shared.u32 [%r3], %r1;", "write after write by another warp"),
        (COPY + "cp.async.wait_group 0; bar.sync 0; " + FROM_THE_OTHER_WARP, None),
        (COPY + "cp.async.wait_group 0; " + FROM_THE_OTHER_WARP, "by another warp"),
        (COPY + "cp.async.wait_group 1; bar.sync 0; " + FROM_THE_OTHER_WARP, "copy under way"),
    ],
)
def test_races(body, race):
    _, machine = run(body, "random", seed=1)
    assert any(race in x for x in machine.races.found) if race else not machine.races.found


@pytest.mark.parametrize(
    ("body", "fault"),
    [
        ("st.global.u32 [%rd3+4], %r1;", "out of bounds"),
        ("st.global.u32 [%rd3+2], %r1;", "out of bounds|misaligned"),
        ("ld.shared.u32 %r5, [%r4+4];", "out of bounds"),
        ("ld.shared.v2.u32 {%r5, %r6}, [%r3+4];", "misaligned"),
        ("$AGAIN: nanosleep.u32 40; bra $AGAIN;", "does not end"),
        (
            "setp.eq.s32 %p1, %r1, 0; @%p1 bra $AWAY; shfl.sync.bfly.b32 %r8|%p2, %r1, 1, 31, -1; $AWAY:",
            "wait forever",
        ),
    ],
)
def test_faults(body, fault):
    with pytest.raises(Fault, match=fault):
        run(body)


def test_a_barrier_in_a_branch_is_seen():
    body = """
	and.b32 %r5, %r1, 1; setp.eq.s32 %p1, %r5, 0; @%p1 bra $EVEN;
	bar.sync 0; bra $END;
$EVEN:
	bar.sync 0;
$END:"""
    _, machine = run(body)
    assert machine.partial


@pytest.mark.parametrize(
    "text", ["mul.hi.s32 %r5, %r1, %r1;", "add.sat.s32 %r5, %r1, %r1;", "popc.b32 %r5, %r1;"]
)
def test_what_it_does_not_know_stops_it(text):
    with pytest.raises(NotImplementedError):
        run(text)
