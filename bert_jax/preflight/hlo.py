"""What a compiled step tells: memory by kind, collectives, the compiler's own cycles.

Read from the optimised HLO, as text. A while loop's body counts times its trips. All is
of one device. Cycles are libtpu's estimates of single operations; it makes none for
collectives and Pallas kernels, and other compilers make none at all.
"""

import dataclasses
import functools
import math
import re
from collections.abc import Iterator
from typing import Any

import jax

# Operations that run another computation once; collectives of a TPU7x are begun so, on
# its SparseCores.
CALLS = ("call", "call-start", "async-start")
# What libtpu writes for an operation that it cannot estimate is near 2^64.
MAX_CYCLES = 2**62
COLLECTIVES = (
    "all-reduce",
    "all-gather",
    "all-to-all",
    "collective-permute",
    "reduce-scatter",
    "send",  # to another slice
)
CLASSES = ("matmul", "attention", "elementwise", "dropout", "optimizer", "copies")
# By the scopes of bert.py, ops.py and step.py; the first that is found.
SCOPES = ("dropout", "attention", "optimizer")
# Whatever else has no estimate takes no time: tuples, bitcasts, transfers ahead.
WORK = ("fusion", "sort", "scatter", "gather", "convolution", "dot")
ITEM_BYTES = {"pred": 1, "s8": 1, "u8": 1, "bf16": 2, "f16": 2, "s16": 2, "u16": 2}
ITEM_BYTES |= {"f32": 4, "s32": 4, "u32": 4, "f64": 8, "s64": 8, "u64": 8}


@dataclasses.dataclass(frozen=True)
class Instruction:
    name: str
    opcode: str
    num_bytes: int  # of the result
    dtypes: tuple[str, ...]  # of the arrays in the result, each once, sorted
    operands: tuple[str, ...]
    text: str  # what follows the result's type

    @property
    def op_name(self) -> str:
        """The path of scopes and primitive that it was made from."""
        return _found(r'op_name="([^"]*)"', self.text)

    @property
    def cycles(self) -> int | None:
        found = _found(r'"estimated_cycles":"(\d+)"', self.text)
        return int(found) if found and int(found) < MAX_CYCLES else None

    def called(self, role: str) -> str:
        """Returns the computation in a role: calls, body, condition, to_apply."""
        return _found(rf"\b{role}=%?([\w.\-]+)", self.text)


@dataclasses.dataclass(frozen=True)
class Collective:
    kind: str  # one of COLLECTIVES
    num_bytes: int  # of the whole array, on one device, each time
    group_size: int  # devices that take part together
    times: int  # a step
    op_name: str
    dtypes: tuple[str, ...]  # of its arrays, sorted, as f32

    def seconds(self, bytes_per_s: float) -> float:
        """Returns the least time a step: every link in use, at the data sheet's rate.

        It is 0 of what goes to another slice: no data sheet has that network's rate.

        Args:
          bytes_per_s: that a device can send within its slice.
        """
        if self.kind == "send":
            return 0.0
        passes = 2 if self.kind == "all-reduce" else 1
        share = 1.0 - 1.0 / self.group_size
        return self.times * passes * share * self.num_bytes / bytes_per_s


class CompiledProgram:
    """The optimised HLO of a compiled step."""

    def __init__(self, text: str, num_devices: int = 1):
        """Parses the text that `jax.stages.Compiled.as_text` returns."""
        self._num_devices = num_devices
        self._computations: dict[str, list[Instruction]] = {}
        self._entry = ""
        instructions: list[Instruction] = []
        for line in text.splitlines():
            if line.endswith("{") and not line.startswith(" "):
                match = re.match(r"(ENTRY )?%?([\w.\-]+) ", line)
                if match:
                    instructions = self._computations[match[2]] = []
                    self._entry = match[2] if match[1] else self._entry
            elif instruction := _parse(line):
                instructions.append(instruction)

    def executed(self) -> Iterator[tuple[Instruction, int]]:
        """Yields what runs by itself, not inside a fusion, and how often a step."""
        yield from self._executed(self._entry, 1)

    def _executed(
        self, computation: str, times: int
    ) -> Iterator[tuple[Instruction, int]]:
        for instruction in self._computations.get(computation, ()):
            yield instruction, times
            if instruction.opcode == "while":
                trips = times * self.trips(computation, instruction)
                yield from self._executed(instruction.called("body"), trips)
            elif instruction.opcode in CALLS:
                for role in ("to_apply", "calls"):
                    yield from self._executed(instruction.called(role), times)

    def trips(self, computation: str, loop: Instruction) -> int:
        """Returns how often a loop's body runs; 1 where the program does not say."""
        known = _found(r'"known_trip_count":\{"n":"(\d+)"', loop.text)
        if known:
            return int(known)
        condition = {i.name: i for i in self._computations[loop.called("condition")]}
        for instruction in condition.values():
            if (
                instruction.opcode != "compare"
                or "direction=LT" not in instruction.text
            ):
                continue
            counter, limit = (condition.get(name) for name in instruction.operands)
            if counter and limit and limit.opcode == "constant":
                first = self._first_value(computation, loop, counter)
                return max(_constant(limit) - first, 0)
        return 1

    def _first_value(
        self, computation: str, loop: Instruction, counter: Instruction
    ) -> int:
        """Returns what a loop's counter starts with, 0 where it is no constant."""
        index = _found(r"\bindex=(\d+)", counter.text)
        here = {i.name: i for i in self._computations[computation]}
        start = here.get(loop.operands[0])
        if not index or start is None or start.opcode != "tuple":
            return 0
        first = here.get(start.operands[int(index)])
        while first is not None and first.opcode == "copy":
            first = here.get(first.operands[0])
        return _constant(first) if first and first.opcode == "constant" else 0

    @functools.cached_property
    def collectives(self) -> list[Collective]:
        """Every collective of a step, in order; metrics' sums are among them."""
        found = []
        for instruction, times in self.executed():
            for kind, inner in self._collectives_in(instruction):
                size = self._whole_bytes(inner)
                group = self._group_size(inner)
                name = instruction.op_name
                found.append(Collective(kind, size, group, times, name, inner.dtypes))
        return found

    def _collectives_in(
        self, instruction: Instruction
    ) -> Iterator[tuple[str, Instruction]]:
        """Yields what an instruction is, or what libtpu has fused into it.

        An all-reduce of which each device keeps its part is a reduce-scatter: a fusion
        of the two, without a name of its own.
        """
        inside = [instruction]
        if instruction.opcode == "fusion":
            inside = self._computations.get(instruction.called("calls"), [])
        for inner in inside:
            kind = inner.opcode.removesuffix("-start")
            if kind in COLLECTIVES:
                if kind == "all-reduce" and any(
                    i.opcode == "dynamic-slice" for i in inside
                ):
                    kind = "reduce-scatter"
                yield kind, inner

    def _whole_bytes(self, instruction: Instruction) -> int:
        size = instruction.num_bytes
        if instruction.opcode == "reduce-scatter":  # the result is a share
            return size * self._group_size(instruction)
        if instruction.opcode == "all-gather-start":  # (operand, result)
            group = self._group_size(instruction)
            return size * group // (group + 1)
        if instruction.opcode == "collective-permute-start":  # (operand, result, ...)
            return size // 2  # what follows are a few bytes
        return size

    def _group_size(self, instruction: Instruction) -> int:
        text = instruction.text
        if instruction.opcode == "send":
            return 2
        if mesh := re.search(r"replica_groups=mesh\[([^\]]*)\] \{([^}]*)\}", text):
            sizes = dict(re.findall(r"'(\w+)'=(\d+)", mesh[1]))
            return math.prod(int(sizes[a]) for a in re.findall(r"'(\w+)'", mesh[2]))
        if iota := _found(r"replica_groups=\[\d+,(\d+)\]", text):
            return int(iota)
        if listed := _found(r"replica_groups=\{\{([\d,]+)\}", text):
            return listed.count(",") + 1
        return self._num_devices

    @functools.cached_property
    def cycles(self) -> dict[str, int]:
        """Estimated cycles of a step by operation class, without collectives.

        A fusion counts as a whole for what it was made around: its matrix product, or
        else the operation that gives it its name. Dropout that was fused into another
        operation counts there.
        """
        total: dict[str, int] = dict.fromkeys(CLASSES, 0)
        for instruction, times in self.executed():
            if instruction.cycles is not None:
                total[self._class(instruction)] += times * instruction.cycles
        return total

    @functools.cached_property
    def unestimated(self) -> list[tuple[Instruction, int]]:
        """Operations that work and have no estimate, and how often they run a step."""
        return [
            (instruction, times)
            for instruction, times in self.executed()
            if instruction.cycles is None
            and not any(self._collectives_in(instruction))
            and (
                instruction.opcode in WORK
                or 'custom_call_target="tpu_custom_call"' in instruction.text
            )
        ]

    def _class(self, instruction: Instruction) -> str:
        product = self._product(instruction)
        name = (product or instruction).op_name
        for scope in SCOPES:
            if re.search(rf"\b{scope}\b", name):
                return scope
        if product:
            return "matmul"
        return "copies" if instruction.opcode == "copy" else "elementwise"

    def _product(self, instruction: Instruction) -> Instruction | None:
        """Returns the matrix product in a fusion, or the instruction if it is one."""
        if instruction.opcode in ("convolution", "dot"):
            return instruction
        if instruction.opcode == "fusion":
            for inner in self._computations.get(instruction.called("calls"), ()):
                if product := self._product(inner):
                    return product
        return None


def memory(compiled: jax.stages.Compiled) -> dict[str, int]:
    """Returns the bytes of a compiled program on one device, and their total.

    Aliased bytes are outputs that take the place of arguments. Near the limit the total
    is a little high: a program that libtpu takes was seen 5% over the memory there is.
    Whether it fits is for libtpu to say.
    """
    stats: Any = compiled.memory_analysis()
    found = {
        "arguments": stats.argument_size_in_bytes,
        "temporaries": stats.temp_size_in_bytes,
        "outputs": stats.output_size_in_bytes,
        "aliased": stats.alias_size_in_bytes,
        "code": stats.generated_code_size_in_bytes,
    }
    return found | {"total": sum(found.values()) - 2 * found["aliased"]}


def refused_bytes(message: str) -> tuple[int, int] | None:
    """Returns what libtpu says a program needs and what there is, if it says so."""
    size = r"([\d.]+)([KMGT]?)"
    match = re.search(
        rf"(?:temporaries \(|Used ){size}(?:\) exceeds available HBM \(| of ){size}",
        message,
    )
    if not match:
        return None
    units = {unit: 1024**i for i, unit in enumerate(("", "K", "M", "G", "T"))}
    return (
        int(float(match[1]) * units[match[2]]),
        int(float(match[3]) * units[match[4]]),
    )


def device_bytes(tree: Any) -> int:
    """Returns the bytes that one device holds of a tree of arrays or shapes."""
    return sum(
        math.prod(x.sharding.shard_shape(x.shape)) * x.dtype.itemsize
        for x in jax.tree.leaves(tree)
    )


def _parse(line: str) -> Instruction | None:
    match = re.match(r"  (?:ROOT )?%?([\w.\-]+) = ", line)
    if not match:
        return None
    rest = line[match.end() :]
    opcode = re.search(r"(?:^| )([a-z][a-z0-9\-]*)\(", rest)
    if not opcode:
        return None
    arguments, _, _ = rest[opcode.end() :].partition(")")
    return Instruction(
        name=match[1],
        opcode=opcode[1],
        num_bytes=_type_bytes(rest[: opcode.start()]),
        dtypes=_dtypes(rest[: opcode.start()]),
        operands=tuple(re.findall(r"%([\w.\-]+)", arguments)),
        text=rest[opcode.start() :],
    )


def _type_bytes(text: str) -> int:
    return sum(
        ITEM_BYTES.get(kind, 0) * math.prod(int(n) for n in dims.split(",") if n)
        for kind, dims in re.findall(r"\b([a-z]+\d*)\[([\d,]*)\]", text)
    )


def _dtypes(text: str) -> tuple[str, ...]:
    found = set(re.findall(r"\b([a-z]+\d*)\[", text))
    return tuple(sorted(found & ITEM_BYTES.keys()))


def _constant(instruction: Instruction) -> int:
    return int(_found(r"constant\((-?\d+)\)", instruction.text) or 0)


def _found(pattern: str, text: str) -> str:
    match = re.search(pattern, text)
    return match[1] if match else ""
