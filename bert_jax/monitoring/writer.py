"""Rates, FLOPs and where the numbers of a run are written.

MFU is the share of the devices' peak matrix rate that goes into the model's own matrix
products: forward once, backward twice, only for what the step computes. The peak is the
data sheet's for bfloat16, whatever the compute dtype; that of an unknown device, a CPU
above all, is a float32 product measured at the start, and again when a run is faster.
"""

import io
import json
import math
import os
import socket
import time
from pathlib import Path
from typing import Any

from tensorboard.compat.proto import event_pb2, summary_pb2
from tensorboard.summary.writer.record_writer import RecordWriter

from bert_jax import storage

# Classes that protobuf makes at import, where type checkers cannot see them.
Event = getattr(event_pb2, "Event")  # noqa: B009
SessionLog = getattr(event_pb2, "SessionLog")  # noqa: B009
Summary = getattr(summary_pb2, "Summary")  # noqa: B009

# Of a line with held-out metrics: the weighted sum of the objectives' losses.
HELD_OUT_LOSS = "eval_loss"


class MetricsWriter:
    """Appends to metrics.jsonl and to a TensorBoard event file in the workdir."""

    def __init__(self, workdir: str, first_step: int):
        """Creates the event file and drops the lines of steps after `first_step`.

        Those steps were lost with a process that was killed after its last checkpoint,
        and are taken again.
        """
        path = Path(workdir) / "metrics.jsonl"
        if path.exists():
            kept = [line for line in complete_lines(path) if line["step"] <= first_step]
            text = "".join(json.dumps(line) + "\n" for line in kept)
            storage.write(str(path), text.encode())
        self._lines = Appended(path)
        # TensorBoard reads a directory's event files as one run, in the order of names.
        name = f"events.out.tfevents.{time.time_ns()}.{socket.gethostname()}"
        self._events = Appended(Path(workdir) / name)
        self._add_event(file_version="brain.Event:2")
        # Tells TensorBoard to forget what an earlier call wrote of later steps.
        start = SessionLog(status=SessionLog.START)
        self._add_event(step=first_step + 1, session_log=start)

    def write(self, step: int, metrics: dict[str, float]) -> None:
        """Writes a line {"step": step, **metrics} and each metric as a scalar.

        A metric that is not finite becomes null in the line.
        """
        line = {
            name: value if math.isfinite(value) else None  # JSON has no others
            for name, value in metrics.items()
        }
        self._lines.write((json.dumps({"step": step, **line}) + "\n").encode())
        values = [
            Summary.Value(tag=name, simple_value=value)
            for name, value in metrics.items()
        ]
        self._add_event(step=step, summary=Summary(value=values))

    def _add_event(self, **fields: Any) -> None:
        event = Event(wall_time=time.time(), **fields)
        RecordWriter(self._events).write(event.SerializeToString())

    def flush(self) -> None:
        """Has all that was written on disk, or in a bucket that is mounted as one."""
        self._lines.close()
        self._events.close()

    def close(self) -> None:
        self.flush()


class Appended:
    """A file that is open from a write to the next `close`, and goes on after that.

    A mounted bucket takes a file when it is closed: one that stays open is not there
    for anybody else, and is lost with the host.
    """

    def __init__(self, path: Path):
        self._path = path
        self._file: io.BufferedWriter | None = None

    def write(self, data: bytes) -> None:
        with storage.raise_storage_errors(str(self._path)):
            if self._file is None:
                self._file = self._path.open("ab")
            self._file.write(data)
            self._file.flush()

    def close(self) -> None:
        file, self._file = self._file, None
        if file is not None:
            with storage.raise_storage_errors(str(self._path)), file:
                os.fsync(file.fileno())


class NoWriter:
    """Takes metrics and writes nothing: of every process but the first."""

    def write(self, step: int, metrics: dict[str, float]) -> None:
        pass

    def flush(self) -> None:
        pass

    def close(self) -> None:
        pass


def open_writer(
    workdir: str, first_step: int, is_first: bool
) -> MetricsWriter | NoWriter:
    """Returns what writes in the first process and does not in the others."""
    if not is_first:
        return NoWriter()
    return MetricsWriter(workdir, first_step)


def read(workdir: str) -> list[dict[str, Any]]:
    """Returns the lines of the workdir's metrics.jsonl, none where it is not there."""
    path = Path(workdir) / "metrics.jsonl"
    return complete_lines(path) if path.is_file() else []


def complete_lines(path: Path) -> list[dict[str, Any]]:
    """Returns the JSON objects of a file that have a step, a line each."""
    lines = []
    for text in path.read_text(errors="replace").splitlines():
        try:
            line = json.loads(text)
        except json.JSONDecodeError:  # cut off by a kill
            continue
        if isinstance(line, dict) and isinstance(line.get("step"), int):
            lines.append(line)
    return lines
