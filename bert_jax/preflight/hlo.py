"""Reads memory, collectives and estimated cycles from a compiled step.

The source is the text of the optimized HLO. The body of a while loop counts once per
iteration. All numbers are those of one device. Cycles are libtpu's estimates of single
operations; it makes none for collectives and Pallas kernels, and other compilers make
none at all.
"""

import dataclasses
import functools
import math
import re
from collections.abc import Iterator
from typing import Any

import jax

# Operations that run another computation once. A TPU7x starts collectives this way, on
# its SparseCores.
CALLS = ("call", "call-start", "async-start")
# For an operation that it cannot estimate, libtpu writes a number near 2^64.
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
# Classes that are named scopes in bert.py, ops.py and step.py; the first match wins.
SCOPES = ("dropout", "attention", "optimizer")
# Operations that take time even without an estimate. All others without one, such as
# tuples, bitcasts and prefetches, take none.
WORK = ("fusion", "sort", "scatter", "gather", "convolution", "dot")
ITEM_BYTES = {"pred": 1, "s8": 1, "u8": 1, "bf16": 2, "f16": 2, "s16": 2, "u16": 2}
ITEM_BYTES |= {"f32": 4, "s32": 4, "u32": 4, "f64": 8, "s64": 8, "u64": 8}


@dataclasses.dataclass(frozen=True)
class Instruction:
    """One HLO instruction."""

    name: str
    opcode: str  # such as "fusion"
    num_bytes: int  # of the result
    dtypes: tuple[str, ...]  # of the arrays in the result, distinct and sorted
    operands: tuple[str, ...]  # their names
    text: str  # the line after the result's type

    @property
    def op_name(self) -> str:
        """The path of named scopes and the JAX primitive that it came from."""
        return _found(r'op_name="([^"]*)"', self.text)

    @property
    def cycles(self) -> int | None:
        """The compiler's estimate of its cycles; None if there is none."""
        found = _found(r'"estimated_cycles":"(\d+)"', self.text)
        return int(found) if found and int(found) < MAX_CYCLES else None

    def called(self, role: str) -> str:
        """Returns the computation in a role: calls, body, condition or to_apply."""
        return _found(rf"\b{role}=%?([\w.\-]+)", self.text)


@dataclasses.dataclass(frozen=True)
class Collective:
    """A collective operation of the step."""

    kind: str  # one of COLLECTIVES
    num_bytes: int  # size of the whole array, per execution
    group_size: int  # number of devices that participate together
    times: int  # executions per step
    op_name: str
    dtypes: tuple[str, ...]

    def seconds(self, bytes_per_s: float) -> float:
        """Returns the minimum time per step if a device can send at this rate."""
        if self.kind == "send":  # no data sheet has the rate of that network
            return 0.0
        passes = 2 if self.kind == "all-reduce" else 1
        share = 1.0 - 1.0 / self.group_size
        return self.times * passes * share * self.num_bytes / bytes_per_s


class CompiledProgram:
    """The optimized HLO of a compiled step."""

    def __init__(self, text: str, num_devices: int = 1):
        """Parses optimized HLO; groups that it omits have `num_devices` devices."""
        self.num_devices = num_devices
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

    def executed(
        self, computation: str | None = None, times: int = 1
    ) -> Iterator[tuple[Instruction, int]]:
        """Yields each instruction outside fusions, and its executions per step."""
        name = self._entry if computation is None else computation
        for each in self._computations.get(name, ()):
            yield each, times
            if each.opcode == "while":
                yield from self.executed(each.called("body"), times * self.trips(each))
            elif each.opcode in CALLS:
                called = each.called("to_apply") or each.called("calls")
                yield from self.executed(called, times)

    def trips(self, loop: Instruction) -> int:
        """Returns the number of iterations of a loop; 1 if the program omits it.

        libtpu omits the known trip count. Loops of JAX count from 0 to a constant.
        """
        if known := _found(r'"known_trip_count":\{"n":"(\d+)"', loop.text):
            return int(known)
        condition = {i.name: i for i in self._computations[loop.called("condition")]}
        for each in condition.values():
            if each.opcode == "compare" and "direction=LT" in each.text:
                limit = condition.get(each.operands[1])
                found = limit and _found(r"constant\((\d+)\)", limit.text)
                return int(found) if found else 1
        return 1

    @functools.cached_property
    def collectives(self) -> list[Collective]:
        """All collectives of a step, in order, including the sums of metrics."""
        return [
            Collective(
                kind,
                self._whole_bytes(inner),
                self._group_size(inner),
                times,
                instruction.op_name,
                inner.dtypes,
            )
            for instruction, times in self.executed()
            for kind, inner in self._collectives_in(instruction)
        ]

    def _collectives_in(
        self, instruction: Instruction
    ) -> Iterator[tuple[str, Instruction]]:
        """Yields the kind and instruction of each collective in an instruction.

        libtpu fuses collectives into other operations; an all-reduce and the slice that
        each device keeps are a reduce-scatter.
        """
        inside = [instruction]
        if instruction.opcode == "fusion":
            inside = self._computations.get(instruction.called("calls"), [])
        for inner in inside:
            kind = inner.opcode.removesuffix("-start")
            if kind in COLLECTIVES:
                sliced = any(i.opcode == "dynamic-slice" for i in inside)
                scatters = kind == "all-reduce" and sliced
                yield "reduce-scatter" if scatters else kind, inner

    def _whole_bytes(self, instruction: Instruction) -> int:
        size, group = instruction.num_bytes, self._group_size(instruction)
        if instruction.opcode == "reduce-scatter":  # the result is one shard
            return size * group
        if instruction.opcode == "all-gather-start":  # (operand, result)
            return size * group // (group + 1)
        if instruction.opcode == "collective-permute-start":  # (operand, result, ...)
            return size // 2  # the rest of the tuple is a few bytes
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
        return self.num_devices

    @functools.cached_property
    def cycles(self) -> dict[str, int]:
        """Estimated cycles of a step by operation class, without collectives.

        The class of a fusion is that of its matrix product, or else that of the
        operation which gives it its name.
        """
        total: dict[str, int] = dict.fromkeys(CLASSES, 0)
        for instruction, times in self.executed():
            if instruction.cycles is not None:
                total[self._class(instruction)] += times * instruction.cycles
        return total

    @functools.cached_property
    def unestimated(self) -> list[tuple[Instruction, int]]:
        """Operations that take time but have no estimate, with executions per step."""
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
        """Returns the instruction or, in a fusion, the first matrix product, if any."""
        if instruction.opcode in ("convolution", "dot"):
            return instruction
        if instruction.opcode != "fusion":
            return None
        inside = self._computations.get(instruction.called("calls"), ())
        return next(filter(None, map(self._product, inside)), None)


def memory(compiled: jax.stages.Compiled) -> dict[str, int]:
    """Returns the bytes of a compiled program on one device, and their total.

    Aliased bytes are outputs that overwrite arguments. Near the limit the total is
    slightly too high: a program that libtpu accepts was seen at 5% over the available
    memory. Only libtpu decides whether a program fits.
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
    """Parses needed and available bytes from libtpu's error; None for other errors."""
    size = r"([\d.]+)([KMGT]?)"
    pattern = (
        rf"(?:temporaries \(|Used ){size}(?:\) exceeds available HBM \(| of ){size}"
    )
    match = re.search(pattern, message)
    if not match:
        return None
    needed, unit, available, other = match.groups()
    return _bytes(needed, unit), _bytes(available, other)


def _bytes(number: str, unit: str) -> int:
    return int(float(number) * 1024 ** " KMGT".index(unit or " "))


def device_bytes(tree: Any) -> int:
    """Returns the bytes of a tree of sharded arrays or shapes on one device."""
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
    arrays = re.findall(r"\b([a-z]+\d*)\[([\d,]*)\]", rest[: opcode.start()])
    num_bytes = sum(
        ITEM_BYTES.get(dtype, 0) * math.prod(int(n) for n in dims.split(",") if n)
        for dtype, dims in arrays
    )
    dtypes = {dtype for dtype, _ in arrays} & ITEM_BYTES.keys()
    operands = re.findall(r"%([\w.\-]+)", arguments)
    text = rest[opcode.start() :]
    return Instruction(
        match[1], opcode[1], num_bytes, tuple(sorted(dtypes)), tuple(operands), text
    )


def _found(pattern: str, text: str) -> str:
    match = re.search(pattern, text)
    return match[1] if match else ""
