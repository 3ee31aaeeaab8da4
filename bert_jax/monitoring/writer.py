"""Writes the metrics of a run to metrics.jsonl and TensorBoard event files."""

import json
import math
import os
import socket
import time
from collections.abc import Callable
from typing import IO, Any

from tensorboard.compat.proto import event_pb2, summary_pb2
from tensorboard.summary.writer.record_writer import RecordWriter

from bert_jax import storage

# Protobuf creates these classes at import time, so type checkers cannot see them.
Event = getattr(event_pb2, "Event")  # noqa: B009
SessionLog = getattr(event_pb2, "SessionLog")  # noqa: B009
Summary = getattr(summary_pb2, "Summary")  # noqa: B009

METRICS_FILE = "metrics.jsonl"
# An object in a bucket cannot be appended to. It is written whole this often, which is
# the most that a kill loses.
UPLOAD_SECS = 30.0
# The key of the weighted sum of the objectives' losses in a held-out line.
HELD_OUT_LOSS = "eval_loss"
# The key of the next-sentence accuracy of always giving the more frequent label.
MAJORITY = "eval_next_sentence_majority"
# The keys of config.eval that change this loss; a held-out line has them as eval_KEY.
HELD_OUT_SETTINGS = ("num_sequences", "masked_lm_prob")
# Starts the keys of probes in a held-out line; their values are percentages.
PROBE = "probe/"


class MetricsWriter:
    """Appends to metrics.jsonl and to a TensorBoard event file in the workdir."""

    def __init__(self, workdir: str, first_step: int):
        """Creates the event file, and drops the lines of steps that are repeated."""
        path = os.path.join(workdir, METRICS_FILE)
        keep_lines(path, lambda line: line["step"] <= first_step)
        self._lines = AppendOnlyFile(path)
        # TensorBoard reads the event files of a directory in name order, as one run.
        name = f"events.out.tfevents.{time.time_ns()}.{socket.gethostname()}"
        self._events = AppendOnlyFile(os.path.join(workdir, name))
        self._add_event(file_version="brain.Event:2")
        # Makes TensorBoard discard events of later steps that an earlier call wrote.
        start = SessionLog(status=SessionLog.START)
        self._add_event(step=first_step + 1, session_log=start)

    def write(self, step: int, metrics: dict[str, float]) -> None:
        """Writes a line and scalars; a value that is not finite is null in the line."""
        line = {
            name: value if math.isfinite(value) else None  # JSON has no NaN
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
        """Commits all lines and events to disk, or to a mounted bucket."""
        self._lines.close()
        self._events.close()


class AppendOnlyFile:
    """Appends to a file; `write` reopens it after `close`.

    A mounted bucket stores a file when it is closed: a file that stays open is
    invisible to other machines, and is lost with this one. See also UPLOAD_SECS.
    """

    def __init__(self, path: str):
        self._path = path
        self._file: IO[bytes] | None = None
        self._object: bytearray | None = None
        self._uploaded = time.monotonic()

    def write(self, data: bytes) -> None:
        if storage.is_remote(self._path):
            self._extend(data)
            return
        with storage.raise_storage_errors(self._path):
            if self._file is None:
                self._file = storage.open_own(self._path, "ab")
            self._file.write(data)
            self._file.flush()

    def close(self) -> None:
        if self._object is not None:
            self._uploaded = time.monotonic()
            storage.write(self._path, bytes(self._object))
        file, self._file = self._file, None
        if file is not None:
            with storage.raise_storage_errors(self._path), file:
                os.fsync(file.fileno())

    def _extend(self, data: bytes) -> None:
        if self._object is None:
            is_there = storage.exists(self._path)
            self._object = bytearray(storage.read(self._path) if is_there else b"")
        self._object += data
        if time.monotonic() - self._uploaded > UPLOAD_SECS:
            self.close()


def keep_lines(path: str, is_kept: Callable[[dict[str, Any]], bool]) -> None:
    """Drops the other lines of a file like metrics.jsonl, if there is one."""
    if storage.exists(path):
        kept = (line for line in _complete_lines(path) if is_kept(line))
        text = "".join(json.dumps(line) + "\n" for line in kept)
        storage.write(path, text.encode())


def read(workdir: str) -> list[dict[str, Any]]:
    """Returns the lines of metrics.jsonl in a workdir, [] if there is no such file."""
    path = os.path.join(workdir, METRICS_FILE)
    return _complete_lines(path) if storage.exists(path) else []


def _complete_lines(path: str) -> list[dict[str, Any]]:
    """Returns the lines of a file that are JSON objects with a step."""
    lines = []
    for text in storage.read(path).decode(errors="replace").splitlines():
        try:
            line = json.loads(text)
        except json.JSONDecodeError:  # truncated when the process was killed
            continue
        if isinstance(line, dict) and isinstance(line.get("step"), int):
            lines.append(line)
    return lines
