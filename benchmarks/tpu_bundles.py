"""Reads the final schedule of a TPU program: VLIW bundles, which issue one per cycle.

libtpu writes the bundles of each operation when it compiles, also without a TPU. The
bundles of an operation times the iterations of its loops are its cycles of computation,
those of Pallas kernels included. Waiting for memory is in no bundle, so the time of an
operation is taken as the larger of its bundles and its bytes in HBM over the bandwidth.

Not included: the start of an operation, overlap between operations, and the arrays that
the compiler fetches ahead into the core's memory, whose bytes are counted apart.
"""

import contextlib
import dataclasses
import os
import re
import tempfile
from collections.abc import Iterator
from pathlib import Path

from bert_jax.distributed.chips import Chip
from bert_jax.errors import ConfigError
from bert_jax.preflight.hlo import CompiledProgram, Instruction

FLAGS = (
    "--xla_jf_dump_llo_text=true",
    "--xla_jf_dump_llo_html=false",
    "--xla_jf_emit_annotations=true",
    "--xla_jf_dump_llo_pass_label_regex=^final_bundles$",  # not all 60 passes, 1 GB
)
_REGION = re.compile(r"Start(?:/End)?(?: empty)? region (\d+)")
_LIMIT = re.compile(r"scmp\.ge\.s32\.totalorder %\w+, (\d+)\s*/\* loop exit")
_BRANCH = re.compile(r"sbr\.rel \(!?%?\w+\) target = \$region(\d+)")


@dataclasses.dataclass(frozen=True)
class Operation:
    """An operation of a compiled step. Cycles and bytes are those of one execution."""

    name: str
    kind: str  # one of hlo.CLASSES
    times: int  # executions per step
    estimated_cycles: int | None  # by the compiler
    bundle_cycles: int | None  # bundles times trips; None if none were written
    hbm_cycles: float  # bytes in HBM over the bandwidth

    @property
    def cycles(self) -> float:
        """The larger of the cycles of computation and of memory."""
        return max(self.bundle_cycles or 0, self.hbm_cycles)


@contextlib.contextmanager
def dumped() -> Iterator[str]:
    """Configures libtpu to write its schedules to a directory, which it yields.

    libtpu reads its flags when it is loaded, so it must not be loaded before.
    """
    with tempfile.TemporaryDirectory(prefix="bert_jax-schedule-") as directory:
        given = os.environ.get("LIBTPU_INIT_ARGS", "")
        flags = (given, f"--xla_jf_dump_to={directory}", *FLAGS)
        os.environ["LIBTPU_INIT_ARGS"] = " ".join(flags).strip()
        try:
            yield directory
        finally:
            os.environ["LIBTPU_INIT_ARGS"] = given


def operations(program: CompiledProgram, directory: str, chip: Chip) -> list[Operation]:
    """Returns the operations of a step that take time, without collectives.

    Their schedules are those that libtpu wrote to `directory` when it compiled them.
    """
    cycles = {
        name_of(path): bundle_cycles(path.read_text())
        for path in Path(directory).glob("*-final_bundles.txt")
        if "schedule-analysis" not in path.name
    }
    if not cycles:
        raise ConfigError(
            "libtpu wrote no schedules; they can be read from a process that has not"
            " used libtpu before"
        )
    # libtpu compiles equal operations once, under the name of one of them.
    operands = Operands(program)
    equal = {
        operands.signature(each): cycles[each.name]
        for each, _ in program.executed()
        if each.name in cycles
    }
    bytes_per_cycle = chip.hbm_bytes_per_s / chip.clock_hz
    return [
        Operation(
            each.name,
            program.kind(each),
            times,
            each.cycles,
            cycles.get(each.name, equal.get(operands.signature(each))),
            operands.hbm_bytes(each) / bytes_per_cycle,
        )
        for each, times in program.executed()
        if each.cycles is not None or operands.signature(each) in equal
        if not program.is_collective(each)
    ]


class Operands:
    """Finds the operands of a program's instructions, by their names."""

    def __init__(self, program: CompiledProgram):
        self._computations = program.computations
        every = (each for part in self._computations.values() for each in part)
        self._results = {each.name: each for each in every}

    def of(self, instruction: Instruction) -> list[Instruction]:
        names = re.findall(r"%([\w.\-]+)", instruction.text.partition(")")[0])
        return [self._results[name] for name in names]

    def hbm_bytes(self, instruction: Instruction) -> int:
        """Returns the bytes that an instruction reads from HBM and writes to it.

        An operand counts as a whole, also where only a slice of it is read.
        """
        return sum(each.num_hbm_bytes for each in [*self.of(instruction), instruction])

    def signature(self, instruction: Instruction) -> str:
        """Returns a text that is equal for instructions with the same machine code.

        It has the instruction and the computation that it calls, without their names
        and metadata.
        """
        types = [each.result for each in self.of(instruction)]
        called = self._body(instruction.called("calls"))
        return "\n".join((instruction.result, instruction.opcode, *types, called))

    def _body(self, computation: str) -> str:
        """Returns the instructions of a computation with numbers for names."""
        instructions = self._computations.get(computation, [])
        numbers = {each.name: str(i) for i, each in enumerate(instructions)}

        def anonymous(match: re.Match[str]) -> str:
            return numbers.get(match[1], "") or self._body(match[1])

        lines = []
        for each in instructions:
            text = re.split(", (?:metadata|backend)", each.text)[0]
            text = re.sub(r"%([\w.\-]+)", anonymous, text)
            lines.append(f"{each.result} {text}")
        return "\n".join(lines)


def name_of(path: Path) -> str:
    """Returns the HLO instruction of a file of bundles."""
    name = path.name.removesuffix("-final_bundles.txt")
    return re.sub(r"^\d+-|-\d+$", "", name)


def bundle_cycles(text: str) -> int:
    """Returns the number of bundles of an operation, each times its loops' iterations.

    A region that is skipped under a condition counts as if it always ran.
    """
    # A comment in a bundle may contain line breaks.
    bundles = re.split(r"^ *(?:0x[0-9a-f]+|0) [ A-Z]*:", text, flags=re.MULTILINE)[1:]
    starts: dict[str, int] = {}
    weights, trips = [1] * len(bundles), 1
    for i, bundle in enumerate(bundles):
        for region in _REGION.findall(bundle):
            starts.setdefault(region, i)
        if limit := _LIMIT.search(bundle):
            trips = int(limit[1])
        back = _BRANCH.search(bundle)
        if back and starts.get(back[1], i + 1) <= i:
            for inside in range(starts[back[1]], i + 1):
                weights[inside] *= trips
            trips = 1
    return sum(weights)
