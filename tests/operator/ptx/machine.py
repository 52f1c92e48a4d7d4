"""Runs a kernel: all blocks at once, warps in an order of choice, of diverged lanes those behind first.

A launch is right if it ends, `races` is empty and no instruction of a whole warp was reached by a part of it
(`partial`). Registers and shared memory start with numbers that spoil a result.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from . import decoding
from .memory import AsyncCopies, Fault, GlobalMemory, SharedMemory
from .operands import read
from .parser import Instruction, Module, Negated, Register
from .races import Races
from .values import TYPES, UNSIGNED, Lanes, Step, size_of

ORDERS = ("random", "lowest", "highest")
_RUNS, _AT_BARRIER, _AT_COLLECTIVE, _SLEEPS, _DONE = range(5)
_COLLECTIVE = ("mma", "ldmatrix", "shfl", "vote")
_POISON = {1: 0xDD, 2: 0x7FFF, 4: 0xFFFFDEAD, 8: 0xDEAD_DEAD_DEAD_DEAD}


@dataclass(frozen=True)
class Launch:
    """The launch of a kernel: `columns` times `rows` blocks.

    `ranges` are addresses and sizes of the memory that it may touch.
    """

    kernel: str
    parameter: bytes
    columns: int
    threads: int
    shared_bytes: int
    ranges: Sequence[tuple[int, int]]
    rows: int = 1


class Machine:
    """One launch. `order` is one of ORDERS and says which warps run first; `seed` serves "random"."""

    def __init__(self, module: Module, launch: Launch, order: str = "random", seed: int = 0):
        self.module, self.order, self.random = module, order, np.random.default_rng(seed)
        self.columns, self.blocks = launch.columns, launch.columns * launch.rows
        self.block_threads = launch.threads
        count = self.blocks * launch.threads
        self.everyone = np.arange(count)
        self.thread, self.block = self.everyone % launch.threads, self.everyone // launch.threads
        pitch = -(-launch.shared_bytes // 128) * 128
        self.races = Races(self.blocks, launch.threads, pitch // 2)
        self.memory = GlobalMemory(launch.ranges)
        self.shared = SharedMemory(self.blocks, launch.shared_bytes, self.races)
        self.copies = AsyncCopies(self.memory, self.shared, count)
        self.parameters = {x: np.zeros((count, size), np.uint8) for x, size in module.parameters.items()}
        self.parameters[module.entries[launch.kernel]][:] = np.frombuffer(launch.parameter, np.uint8)
        self.parameter_names = list(module.parameters)
        self.registers: list[NDArray | None] = [None] * len(module.registers)
        self.steps: list[Step | None] = [None] * len(module.instructions)
        self.leaders = set(module.labels.values())
        self.partial: Counter[str] = Counter()
        self.executed: Counter[int] = Counter()  # by the instruction's place
        self.place = np.full(count, module.labels[launch.kernel])
        self.state = np.full(count, _RUNS)
        self.returns: dict[str, NDArray] = {}
        self.vote, self.vote_to = np.zeros(count, bool), np.full(count, -1)

    # --- registers -----------------------------------------------------------------------------------------

    def register(self, register: Register) -> NDArray:
        """Every thread's, as unsigned numbers."""
        found = self.registers[register.number]
        if found is None:
            kind = self.module.registers[register.number]
            if kind == "pred":
                found = np.zeros(len(self.everyone), bool)
            else:
                size = size_of(kind)
                found = np.full(len(self.everyone), _POISON[size], UNSIGNED[size])
            self.registers[register.number] = found
        return found

    def typed(self, register: Register, kind: str) -> NDArray:
        """The same as numbers of this type, which has the register's size."""
        found = self.register(register)
        return found if kind == "pred" else found.view(TYPES[kind])

    def numbers(self, lanes: Lanes) -> NDArray[np.int64]:
        return self.everyone[lanes]

    # --- which threads run ---------------------------------------------------------------------------------

    def run(self, limit: int = 2_000_000, stop_at_a_race: bool = False) -> "Machine":
        """Until all threads have ended.

        Raises:
            Fault: the kernel does what it must not, waits forever or executes over `limit` instructions.
        """
        with np.errstate(all="ignore"):
            while True:
                self._release_blocks()
                self._release_warps()
                lanes = self._choose()
                if lanes is None:
                    return self
                self._run_block(lanes)
                if stop_at_a_race and self.races.found:
                    return self
                if self.executed.total() > limit:
                    raise Fault("the kernel does not end")

    def _choose(self) -> NDArray[np.int64] | None:
        """Lanes at one place, of each warp those that are furthest behind."""
        places = self.place.reshape(-1, 32)
        nowhere = len(self.module.instructions)
        while True:
            runs, asleep = self.state == _RUNS, self.state == _SLEEPS
            first = np.where((runs | asleep).reshape(-1, 32), places, nowhere).min(1)
            runs &= self.place == np.repeat(first, 32)  # a warp waits for its lanes that sleep
            candidates = np.unique(self.place[runs])
            if len(candidates):
                break
            if (self.state == _DONE).all():
                return None
            if not asleep.any():
                stuck = np.unique(self.place[self.state != _DONE])
                raise Fault(
                    f"threads wait forever at {[self.module.instructions[x].text for x in stuck[:4]]}"
                )
            self.state[asleep] = _RUNS
        target = {"lowest": candidates[0], "highest": candidates[-1]}.get(self.order)
        chosen = first
        if target is None:
            target = self.random.choice(candidates)
            if self.random.random() < 0.3:  # only some of the warps
                some = np.where(self.random.random(len(first)) < 0.5, first, nowhere)
                chosen = some if (some == target).any() else first
        return np.nonzero(runs & (self.place == target) & np.repeat(chosen == target, 32))[0]

    def _release_blocks(self) -> None:
        waiting = self.state == _AT_BARRIER
        if not waiting.any():
            return
        of_block = (waiting | (self.state == _DONE)).reshape(self.blocks, -1)
        ready = of_block.all(1) & waiting.reshape(self.blocks, -1).any(1)
        if not ready.any():
            return
        lanes = np.nonzero(waiting & ready[self.block])[0]
        any_of_block = (self.vote & waiting).reshape(self.blocks, -1).any(1)
        for number in np.unique(self.vote_to[lanes]):
            if number >= 0:
                to = lanes[self.vote_to[lanes] == number]
                self.register(Register(int(number)))[to] = any_of_block[self.block[to]]
        self.vote_to[lanes] = -1
        self.state[lanes] = _RUNS
        self.races.block_barrier(lanes)

    def _release_warps(self) -> None:
        waiting = self.state == _AT_COLLECTIVE
        if not waiting.any():
            return
        places = self.place.reshape(-1, 32)
        together = waiting.reshape(-1, 32).all(1) & (places == places[:, :1]).all(1)
        self.state[np.repeat(together, 32)] = _RUNS

    # --- what they run -------------------------------------------------------------------------------------

    def _run_block(self, numbers: NDArray[np.int64]) -> None:
        """From the place of these threads to the next branch, barrier or label."""
        place = int(self.place[numbers[0]])
        while True:
            instruction = self.module.instructions[place]
            self.executed[place] += 1
            control = _CONTROL.get(instruction.name)
            if control is not None:
                control(self, instruction, place, numbers)
                return
            if instruction.name in _COLLECTIVE:
                numbers = self._whole_warps(instruction, place, numbers)
                if not len(numbers):
                    return
            self._execute(instruction, place, numbers)
            place += 1
            if place in self.leaders:
                self.place[numbers] = place
                return

    def _execute(self, instruction: Instruction, place: int, numbers: NDArray[np.int64]) -> None:
        step = self.steps[place]
        if step is None:
            step = self.steps[place] = decoding.step(self, instruction)
        numbers = self._guarded(instruction, numbers)
        if len(numbers) == len(self.everyone):
            step(slice(None))
        elif len(numbers):
            step(numbers)

    def _guarded(self, instruction: Instruction, numbers: NDArray[np.int64]) -> NDArray[np.int64]:
        guard = instruction.guard
        if guard is None:
            return numbers
        if isinstance(guard, Negated):
            return numbers[~self.register(guard.register)[numbers]]
        return numbers[self.register(guard)[numbers]]

    def _whole_warps(self, instruction: Instruction, place: int, numbers: NDArray) -> NDArray[np.int64]:
        """The threads whose warps are complete here; the others wait for the rest of their warps."""
        if len(numbers) % 32 == 0 and (numbers[::32] + 31 == numbers[31::32]).all():
            return numbers
        here = np.bincount(numbers // 32, minlength=len(self.everyone) // 32)
        self.partial[instruction.text] += int(((here > 0) & (here < 32)).sum())
        late = numbers[here[numbers // 32] < 32]
        self.place[late], self.state[late] = place, _AT_COLLECTIVE
        return numbers[here[numbers // 32] == 32]

    def _branch(self, instruction: Instruction, place: int, numbers: NDArray[np.int64]) -> None:
        self.place[numbers] = place + 1
        self.place[self._guarded(instruction, numbers)] = self.module.labels[instruction.target]

    def _call(self, instruction: Instruction, place: int, numbers: NDArray[np.int64]) -> None:
        returns = self.returns.setdefault(instruction.target, np.full(len(self.everyone), -1))
        returns[numbers] = place + 1
        self.leaders.add(place + 1)
        self.place[numbers] = self.module.labels[instruction.target]

    def _return(self, instruction: Instruction, place: int, numbers: NDArray[np.int64]) -> None:
        self.place[numbers] = place + 1
        back = self._guarded(instruction, numbers)
        self.place[back] = self.returns[instruction.target][back]

    def _exit(self, instruction: Instruction, place: int, numbers: NDArray[np.int64]) -> None:
        self.place[numbers] = place + 1
        self.state[self._guarded(instruction, numbers)] = _DONE

    def _barrier(self, instruction: Instruction, place: int, numbers: NDArray[np.int64]) -> None:
        """The barrier of a block, with a vote or without, or of a warp."""
        if instruction.parts[1] == "warp":
            # Lanes may come one by one; the scheduler has let those behind catch up.
            late = self._incomplete(numbers)
            self.place[numbers] = place + 1
            if len(late):
                self.place[late], self.state[late] = place, _AT_COLLECTIVE
                numbers = np.setdiff1d(numbers, late)
            self.races.warp_barrier(numbers)
            return
        if len(self._incomplete(numbers)):
            self.partial[instruction.text] += 1
        self.place[numbers], self.state[numbers] = place + 1, _AT_BARRIER
        if instruction.parts[1] == "red":
            to, _, voted = instruction.operands
            self.vote[numbers] = read(self, voted, "pred")(numbers)
            self.vote_to[numbers] = to.number

    def _incomplete(self, numbers: NDArray[np.int64]) -> NDArray[np.int64]:
        """The threads some of whose warp is alive elsewhere."""
        here = np.bincount(numbers // 32, minlength=len(self.everyone) // 32)
        alive = (self.state != _DONE).reshape(-1, 32).sum(1)
        return numbers[here[numbers // 32] < alive[numbers // 32]]

    def _sleep(self, instruction: Instruction, place: int, numbers: NDArray[np.int64]) -> None:
        self.place[numbers], self.state[numbers] = place + 1, _SLEEPS


_CONTROL = {
    "bra": Machine._branch,
    "call": Machine._call,
    "ret": Machine._return,
    "exit": Machine._exit,
    "bar": Machine._barrier,
    "nanosleep": Machine._sleep,
}
