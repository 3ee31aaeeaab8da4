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
    """One HLO instruction.

    Attributes:
      name: name of the instruction.
      opcode: the operation, such as "fusion".
      num_bytes: size of the result.
      dtypes: distinct dtypes of the arrays in the result, sorted.
      operands: names of the operands.
      text: the line after the result's type.
    """

    name: str
    opcode: str
    num_bytes: int
    dtypes: tuple[str, ...]
    operands: tuple[str, ...]
    text: str

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
    """A collective operation of the step.

    Attributes:
      kind: one of COLLECTIVES.
      num_bytes: size of the whole array, per execution.
      group_size: number of devices that participate together.
      times: executions per step.
      op_name: see `Instruction.op_name`.
      dtypes: distinct HLO dtypes of its arrays, such as f32, sorted.
    """

    kind: str
    num_bytes: int
    group_size: int
    times: int
    op_name: str
    dtypes: tuple[str, ...]

    def seconds(self, bytes_per_s: float) -> float:
        """Returns the minimum time per step, with every link at its full rate.

        The time of a transfer to another slice is 0, because no data sheet has the rate
        of that network.

        Args:
          bytes_per_s: rate at which a device can send within its slice.
        """
        if self.kind == "send":
            return 0.0
        passes = 2 if self.kind == "all-reduce" else 1
        share = 1.0 - 1.0 / self.group_size
        return self.times * passes * share * self.num_bytes / bytes_per_s


class CompiledProgram:
    """The optimized HLO of a compiled step."""

    def __init__(self, text: str, num_devices: int = 1):
        """Parses optimized HLO.

        Args:
          text: the result of `jax.stages.Compiled.as_text`.
          num_devices: number of devices, the size of groups that the text omits.
        """
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
        """Yields each instruction outside fusions, and its executions per step."""
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
        """Returns the number of iterations of a loop; 1 if the program omits it."""
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
        """Returns the initial value of a loop's counter; 0 if it is not a constant."""
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
        """All collectives of a step, in order, including the sums of metrics."""
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
        """Yields the kind and instruction of each collective in an instruction.

        libtpu fuses collectives into other operations. A fusion of an all-reduce and
        the slice that each device keeps is a reduce-scatter, although it has no such
        name.
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
        if instruction.opcode == "reduce-scatter":  # the result is one shard
            return size * self._group_size(instruction)
        if instruction.opcode == "all-gather-start":  # (operand, result)
            group = self._group_size(instruction)
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
        return self._num_devices

    @functools.cached_property
    def cycles(self) -> dict[str, int]:
        """Estimated cycles of a step by operation class, without collectives.

        The class of a whole fusion is that of its matrix product, or else that of the
        operation which gives it its name. Dropout that is fused into another operation
        counts toward that operation's class.
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
        if instruction.opcode == "fusion":
            for inner in self._computations.get(instruction.called("calls"), ()):
                if product := self._product(inner):
                    return product
        return None


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
