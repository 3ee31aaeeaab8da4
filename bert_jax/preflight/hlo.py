"""Reads memory, collectives and estimated cycles from the HLO of a compiled step.

All numbers are those of one device; the body of a loop counts once per iteration.
Cycles are libtpu's estimates of single operations. It makes none for collectives and
Pallas kernels, and other compilers make none at all.
"""

import dataclasses
import functools
import math
import re
from collections.abc import Iterator
from typing import Any

import jax

# Operations that run another computation once; TPU7x starts collectives this way.
CALLS = ("call", "call-start", "async-start")
COLLECTIVE = "(all-(?:reduce|gather|to-all)|reduce-scatter|collective-permute|send)"
# The class of a named scope in model/, losses.py and step.py; the first match wins.
SCOPES = {
    "dropout": "dropout",
    "attention": "attention",
    "masked_lm_head": "head",
    "loss": "head",
    "embeddings": "embeddings",
    "optimizer": "optimizer",
}
CLASSES = ("matmul", "elementwise", "copies", *dict.fromkeys(SCOPES.values()))
# Operations that take time even without an estimate; tuples and prefetches take none.
WORK = ("fusion", "sort", "scatter", "gather", "convolution", "dot")


@dataclasses.dataclass(frozen=True)
class Instruction:
    name: str  # unique in the program
    result: str  # its type, with layouts
    opcode: str  # such as "fusion"
    num_bytes: int  # of the result
    num_hbm_bytes: int  # of its arrays that are not in a core's own memory
    dtypes: tuple[str, ...]  # of the arrays in the result, distinct and sorted
    text: str  # the line after the result's type

    @property
    def op_name(self) -> str:
        """The path of named scopes and the JAX primitive that it came from."""
        return _first(r'op_name="([^"]*)"', self.text)

    @property
    def cycles(self) -> int | None:
        """The compiler's estimate of its cycles; None if there is none.

        For an operation that it cannot estimate, libtpu writes a number near 2^64.
        """
        cycles = _first(r'"estimated_cycles":"(\d+)"', self.text)
        return int(cycles) if cycles and int(cycles) < 2**62 else None

    @property
    def kernel_flops(self) -> int:
        """The FLOPs that a Pallas kernel declares; 0 for other operations."""
        return int(_first(r'"cost_estimate":\{"flops":"(\d+)"', self.text) or 0)

    def called(self, role: str) -> str:
        """Returns the computation in a role: calls, body, condition or to_apply."""
        return _first(rf"\b{role}=%?([\w.\-]+)", self.text)


@dataclasses.dataclass(frozen=True)
class Collective:
    kind: str  # its opcode
    bytes: int  # size of the whole array, per execution
    devices: int  # number of devices that participate together
    times_a_step: int
    dtypes: tuple[str, ...]

    def seconds(self, bytes_per_s: float) -> float:
        """Returns the minimum time per step if a device can send at this rate."""
        if self.kind == "send":  # to another slice; no data sheet has that rate
            return 0.0
        passes = 2 if self.kind == "all-reduce" else 1
        share = 1.0 - 1.0 / self.devices
        return self.times_a_step * passes * share * self.bytes / bytes_per_s


class CompiledProgram:
    """The optimized HLO of a compiled step."""

    def __init__(self, text: str, num_devices: int = 1):
        """Parses optimized HLO; omitted replica groups have `num_devices` devices."""
        self.num_devices = num_devices
        self.computations: dict[str, list[Instruction]] = {}
        instructions: list[Instruction] = []
        for line in text.splitlines():
            if line.endswith("{") and not line.startswith(" "):
                if match := re.match(r"(ENTRY|%?([\w.\-]+)) ", line):
                    instructions = self.computations[match[2] or match[1]] = []
            elif instruction := _parse(line):
                instructions.append(instruction)

    def executed(
        self, computation: str = "ENTRY", times: int = 1
    ) -> Iterator[tuple[Instruction, int]]:
        """Yields each instruction outside fusions, and its executions per step."""
        for each in self.computations.get(computation, ()):
            yield each, times
            if each.opcode == "while":
                yield from self.executed(each.called("body"), times * self.trips(each))
            elif each.opcode in CALLS:
                called = each.called("to_apply") or each.called("calls")
                yield from self.executed(called, times)

    def trips(self, loop: Instruction) -> int:
        """Returns the number of iterations of a loop, or 1 if it is unknown.

        libtpu omits the known count. Loops of JAX count from 0 to a constant.
        """
        if known := _first(r'"known_trip_count":\{"n":"(\d+)"', loop.text):
            return int(known)
        condition = self.computations[loop.called("condition")]
        limits = [_first(r"constant\((\d+)\)", each.text) for each in condition]
        return max(map(int, filter(None, limits)), default=1)

    @functools.cached_property
    def collectives(self) -> list[Collective]:
        """All collectives of a step, in order, including the sums of metrics."""
        return [
            Collective(kind, self._whole_bytes(x), self._group_size(x), times, x.dtypes)
            for instruction, times in self.executed()
            for kind, x in self._collectives_in(instruction)
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
            inside = self.computations.get(instruction.called("calls"), [])
        sliced = any(inner.opcode == "dynamic-slice" for inner in inside)
        for inner in inside:
            if kind := _first(rf"^{COLLECTIVE}(?:-start)?$", inner.opcode):
                scatters = kind == "all-reduce" and sliced
                yield "reduce-scatter" if scatters else kind, inner

    def _whole_bytes(self, instruction: Instruction) -> int:
        size, group = instruction.num_bytes, self._group_size(instruction)
        match instruction.opcode:
            case "reduce-scatter":  # the result is one shard
                return size * group
            case "all-gather-start":  # (operand, result)
                return size * group // (group + 1)
            case "collective-permute-start":  # (operand, result, a few bytes)
                return size // 2
        return size

    def _group_size(self, instruction: Instruction) -> int:
        text = instruction.text
        if instruction.opcode == "send":
            return 2
        if mesh := re.search(r"replica_groups=mesh\[([^\]]*)\] \{([^}]*)\}", text):
            sizes = dict(re.findall(r"'(\w+)'=(\d+)", mesh[1]))
            return math.prod(int(sizes[a]) for a in re.findall(r"'(\w+)'", mesh[2]))
        if iota := _first(r"replica_groups=\[\d+,(\d+)\]", text):
            return int(iota)
        if listed := _first(r"replica_groups=\{\{([\d,]+)\}", text):
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
            total[self.kind(instruction)] += times * (instruction.cycles or 0)
        return total

    @functools.cached_property
    def unestimated(self) -> list[tuple[Instruction, int]]:
        """Operations that take time but have no estimate, with executions per step."""
        kernel = 'custom_call_target="tpu_custom_call"'
        return [
            (each, times)
            for each, times in self.executed()
            if each.cycles is None and (each.opcode in WORK or kernel in each.text)
            if not self.is_collective(each)
        ]

    def is_collective(self, instruction: Instruction) -> bool:
        """Returns whether an instruction is a collective, or a fusion with one."""
        return any(self._collectives_in(instruction))

    def kind(self, instruction: Instruction) -> str:
        """Returns the class of an instruction, one of CLASSES."""
        product = self._product(instruction)
        name = (product or instruction).op_name
        for scope, kind in SCOPES.items():
            if re.search(rf"\b{scope}\b", name):
                return kind
        other = "copies" if instruction.opcode == "copy" else "elementwise"
        return "matmul" if product else other

    def _product(self, instruction: Instruction) -> Instruction | None:
        """Returns the instruction or, in a fusion, the first matrix product, if any."""
        if instruction.opcode in ("convolution", "dot"):
            return instruction
        if instruction.opcode != "fusion":
            return None
        inside = self.computations.get(instruction.called("calls"), ())
        return next(filter(None, map(self._product, inside)), None)


def memory(compiled: jax.stages.Compiled) -> dict[str, int]:
    """Returns the bytes of a compiled program on one device, and their total.

    Aliased bytes are outputs that overwrite arguments. The total can be slightly too
    high: libtpu was seen to accept a program at 5% over the available memory.
    """
    stats: Any = compiled.memory_analysis()
    sizes = {
        "arguments": stats.argument_size_in_bytes,
        "temporaries": stats.temp_size_in_bytes,
        "outputs": stats.output_size_in_bytes,
        "aliased": stats.alias_size_in_bytes,
        "code": stats.generated_code_size_in_bytes,
    }
    return sizes | {"total": sum(sizes.values()) - 2 * sizes["aliased"]}


def refused_bytes(message: str) -> tuple[int, int] | None:
    """Parses needed and available bytes from libtpu's error; None for other errors."""
    size = r"([\d.]+[KMGT]?)"
    middle = r"(?:\) exceeds available HBM \(| of )"
    match = re.search(rf"(?:temporaries \(|Used ){size}{middle}{size}", message)
    return (_bytes(match[1]), _bytes(match[2])) if match else None


def _bytes(size: str) -> int:
    number = size.rstrip("KMGT")
    return int(float(number) * 1024 ** " KMGT".index(size[len(number) :] or " "))


def device_bytes(tree: Any) -> int:
    """Returns the bytes of a tree of sharded arrays or shapes on one device."""
    return sum(
        math.prod(x.sharding.shard_shape(x.shape)) * x.dtype.itemsize
        for x in jax.tree.leaves(tree)
    )


def _parse(line: str) -> Instruction | None:
    match = re.match(
        r"  (?:ROOT )?%?([\w.\-]+) = (|.*? )(([a-z][a-z0-9\-]*)\(.*)", line
    )
    if not match:
        return None
    name, result, text, opcode = match.groups()
    # The layout follows in braces; S(1) and above are memories of the core.
    arrays = re.findall(
        r"\b(pred|[a-z]+(\d+))\[([\d,]*)\](?:\{[^}]*?(S\(\d+\))?\})?", result
    )
    sizes = [
        (int(bits or 8) // 8 * math.prod(int(n) for n in dims.split(",") if n), space)
        for _, bits, dims, space in arrays
    ]
    return Instruction(
        name,
        result,
        opcode,
        num_bytes=sum(size for size, _ in sizes),
        num_hbm_bytes=sum(size for size, space in sizes if not space),
        dtypes=tuple(sorted({dtype for dtype, *_ in arrays})),
        text=text,
    )


def _first(pattern: str, text: str) -> str:
    match = re.search(pattern, text)
    return match[1] if match else ""
