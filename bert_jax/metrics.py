"""Rates, FLOPs and where the numbers of a run are written.

MFU is the share of the devices' peak matrix rate that goes into the model's own matrix
products: forward once, backward twice, only for what the step computes. The peak is the
data sheet's for bfloat16, whatever the compute dtype; that of an unknown device, a CPU
above all, is a float32 product measured at the start, and again when a run is faster.
"""

import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from tensorboard.compat.proto import event_pb2, summary_pb2
from tensorboard.summary.writer.event_file_writer import EventFileWriter

from bert_jax import topologies
from bert_jax.config import ExperimentConfig, ModelConfig, PhaseConfig

# Classes that protobuf makes at import, where type checkers cannot see them.
Event = getattr(event_pb2, "Event")  # noqa: B009
SessionLog = getattr(event_pb2, "SessionLog")  # noqa: B009
Summary = getattr(summary_pb2, "Summary")  # noqa: B009


def peak_flops() -> float:
    """Returns the FLOP/s of one device: a data sheet's, else a measured product's."""
    chip = topologies.chip_of(jax.devices()[0].device_kind)
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


class MetricsWriter:
    """Appends to metrics.jsonl and to a TensorBoard event file in the workdir."""

    def __init__(self, workdir: str, first_step: int):
        """Opens the files; lines of steps after `first_step` are dropped.

        They are of a run that was killed after its last checkpoint, and come again.
        """
        path = Path(workdir) / "metrics.jsonl"
        if path.exists():
            kept = [
                line for line in _complete_lines(path) if line["step"] <= first_step
            ]
            tmp = path.with_suffix(".tmp")
            tmp.write_text("".join(json.dumps(line) + "\n" for line in kept))
            os.replace(tmp, path)
        self._file = path.open("a", buffering=1)
        self._events = EventFileWriter(workdir)
        # Tells TensorBoard to forget what an earlier call wrote of later steps.
        start = SessionLog(status=SessionLog.START)
        self._events.add_event(
            Event(wall_time=time.time(), step=first_step + 1, session_log=start)
        )

    def write(self, step: int, metrics: dict[str, float]) -> None:
        """Writes a line {"step": step, **metrics} and each metric as a scalar."""
        self._file.write(json.dumps({"step": step, **metrics}) + "\n")
        values = [
            Summary.Value(tag=name, simple_value=value)
            for name, value in metrics.items()
        ]
        self._events.add_event(
            Event(
                wall_time=time.time(),
                step=step,
                summary=Summary(value=values),
            )
        )

    def flush(self) -> None:
        self._file.flush()
        self._events.flush()

    def close(self) -> None:
        self._file.close()
        self._events.close()


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
    return MetricsWriter(workdir, first_step) if is_first else NoWriter()


class StepLog:
    """Turns the metrics of steps into log lines, without making the device wait.

    A line is the mean over the steps since the last one. It is read from the device
    when the next step is under way, one step late.
    """

    def __init__(
        self,
        config: ExperimentConfig,
        writer: MetricsWriter | NoWriter,
        on_line: Callable[[int, dict[str, float]], None],
    ):
        self._config = config
        self._writer = writer
        self._on_line = on_line
        self._peak_flops = peak_flops() * jax.device_count()
        self._pending: list[dict[str, jax.Array]] = []
        self._step = 0
        self._phase_index = 0
        self._clock: float | None = None  # None: the time since is not only steps
        self._timed_steps = 0

    def add(self, step: int, phase_index: int, metrics: dict[str, jax.Array]) -> None:
        """Takes the metrics of the step that brought the count to `step`."""
        is_new_phase = phase_index != self._phase_index
        if len(self._pending) >= self._config.log_every_steps or is_new_phase:
            self.flush()
        if self._clock is None or is_new_phase:
            # Not a step's time: it holds compilation, or an evaluation.
            jax.block_until_ready(metrics)
            self._clock, self._timed_steps = time.perf_counter(), 0
        else:
            self._timed_steps += 1
        self._pending.append(metrics)
        self._step, self._phase_index = step, phase_index

    def flush(self) -> None:
        """Writes a line for the steps since the last one, if there are any."""
        if not self._pending:
            return
        fetched = jax.device_get(self._pending)
        seconds = time.perf_counter() - self._clock if self._clock else 0.0
        line = {
            name: float(np.mean([metrics[name] for metrics in fetched]))
            for name in fetched[0]
        }
        line["learning_rate"] = float(fetched[-1]["learning_rate"])
        line |= self._rates(seconds)
        self._pending = []
        self._clock, self._timed_steps = time.perf_counter(), 0
        self._writer.write(self._step, line)
        self._on_line(self._step, line)

    def stop_clock(self) -> None:
        """Says that what follows is not training: the next step restarts the clock."""
        self._clock = None

    def _rates(self, seconds: float) -> dict[str, float]:
        phase = self._config.phases[self._phase_index]
        rate = phase.global_batch_size * self._timed_steps / seconds if seconds else 0.0
        flops = train_flops_per_sequence(
            self._config.model, self._config.tokenizer.vocab_size, phase
        )
        return {
            "sequences_per_sec": rate,
            "tokens_per_sec": rate * phase.sequence_length,
            "mfu": self._mfu(rate * flops),
        }

    def _mfu(self, flops: float) -> float:
        # A CPU's was measured beside other work, so it is measured again.
        if flops > self._peak_flops and jax.default_backend() == "cpu":
            self._peak_flops = max(self._peak_flops, peak_flops() * jax.device_count())
        return flops / self._peak_flops


def read(workdir: str) -> list[dict[str, Any]]:
    """Returns the lines of the workdir's metrics.jsonl, none where it is not there."""
    path = Path(workdir) / "metrics.jsonl"
    return _complete_lines(path) if path.is_file() else []


def _complete_lines(path: Path) -> list[dict[str, Any]]:
    lines = []
    for text in path.read_text(errors="replace").splitlines():
        try:
            line = json.loads(text)
        except json.JSONDecodeError:  # cut off by a kill
            continue
        if isinstance(line, dict) and isinstance(line.get("step"), int):
            lines.append(line)
    return lines
