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

import jax
import jax.numpy as jnp
from tensorboard.compat.proto import event_pb2, summary_pb2
from tensorboard.summary.writer.record_writer import RecordWriter

from bert_jax import storage
from bert_jax.config import ExperimentConfig, ModelConfig, PhaseConfig
from bert_jax.distributed import chips

# Classes that protobuf makes at import, where type checkers cannot see them.
Event = getattr(event_pb2, "Event")  # noqa: B009
SessionLog = getattr(event_pb2, "SessionLog")  # noqa: B009
Summary = getattr(summary_pb2, "Summary")  # noqa: B009

# Of a line with held-out metrics: the weighted sum of the objectives' losses.
HELD_OUT_LOSS = "eval_loss"


def peak_flops() -> float:
    """Returns the FLOP/s of one device: a data sheet's, else a measured product's."""
    chip = chips.chip_of(jax.devices()[0].device_kind)
    return chip.peak_flops if chip else _measured_flops()


def _measured_flops() -> float:
    """Returns the FLOP/s of a 1024-cubed float32 product, the best in half a second.

    The best: whatever else the machine does at that moment only takes away.
    """
    n = 1024
    x = jnp.ones((n, n), jnp.float32)
    product = jax.jit(jnp.matmul)
    product(x, x).block_until_ready()
    seconds = []
    end = time.perf_counter() + 0.5
    while not seconds or time.perf_counter() < end:
        start = time.perf_counter()
        product(x, x).block_until_ready()
        seconds.append(time.perf_counter() - start)
    return 2 * n**3 / min(seconds)


def train_flops_per_sequence(
    model: ModelConfig, vocab_size: int, phase: PhaseConfig
) -> float:
    """Returns the FLOPs of the matrix products of one row's forward and backward pass.

    Per token and layer 8 D^2 (q, k, v, output) + 4 D F (feed-forward), 4 T D for the
    scores and the context. The last layer has keys and values for every token and the
    rest only for the P + K positions that the heads read. Of a row of K pairs the whole
    attention is counted, as it is computed.
    """
    D, F, L = model.hidden_size, model.intermediate_size, model.num_hidden_layers
    T, P = phase.sequence_length, phase.max_predictions
    K = phase.max_sequences_per_row
    Q = P + K
    layer = T * (8 * D**2 + 4 * D * F + 4 * T * D)
    last_layer = T * 4 * D**2 + Q * (4 * D**2 + 4 * D * F + 4 * T * D)
    heads = P * (2 * D**2 + 2 * D * vocab_size) + K * (2 * D**2 + 4 * D)
    return 3.0 * ((L - 1) * layer + last_layer + heads)


class Rates:
    """What a run's steps a second amount to."""

    def __init__(self, config: ExperimentConfig):
        self._config = config
        self._peak_flops = peak_flops() * jax.device_count()

    def __call__(self, phase_index: int, steps_per_sec: float) -> dict[str, float]:
        """Returns sequences and tokens a second, and the MFU."""
        config, phase = self._config, self._config.phases[phase_index]
        rate = phase.global_batch_size * steps_per_sec
        flops = train_flops_per_sequence(
            config.model, config.tokenizer.vocab_size, phase
        )
        return {
            "sequences_per_sec": rate,
            "tokens_per_sec": rate * phase.sequence_length,
            "mfu": self._mfu(rate * flops),
        }

    def _mfu(self, flops: float) -> float:
        # A CPU's was measured beside other work, so it is measured again.
        if flops > self._peak_flops and jax.default_backend() == "cpu":
            again = peak_flops() * jax.device_count()
            self._peak_flops = max(self._peak_flops, again)
        return flops / self._peak_flops


class MetricsWriter:
    """Appends to metrics.jsonl and to a TensorBoard event file in the workdir."""

    def __init__(self, workdir: str, first_step: int, num_unwritten: int = 0):
        """Makes the event file; lines of steps after `first_step` are dropped.

        They are of a run that was killed after its last checkpoint, and come again. So
        do lines of the loss over any of the last `num_unwritten` steps before, which
        the checkpoint holds because they were not written when it was made.
        """
        path = Path(workdir) / "metrics.jsonl"
        if path.exists():
            written = first_step - num_unwritten
            kept = [
                line
                for line in complete_lines(path)
                if line["step"] <= (written if "loss" in line else first_step)
            ]
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
        with storage.told(str(self._path)):
            if self._file is None:
                self._file = self._path.open("ab")
            self._file.write(data)
            self._file.flush()

    def close(self) -> None:
        file, self._file = self._file, None
        if file is not None:
            with storage.told(str(self._path)), file:
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
    workdir: str, first_step: int, num_unwritten: int, is_first: bool
) -> MetricsWriter | NoWriter:
    """Returns what writes in the first process and does not in the others."""
    if not is_first:
        return NoWriter()
    return MetricsWriter(workdir, first_step, num_unwritten)


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
