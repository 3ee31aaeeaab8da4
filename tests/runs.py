"""Reads and compares the files in the workdirs of runs."""

import json
import pathlib

import jax
import numpy as np
import orbax.checkpoint as ocp

# The metrics of a line that do not depend on the clock.
EXACT = ("step", "loss", "grad_norm", "learning_rate", "bad_steps")
EXACT += ("eval_masked_lm_loss", "eval_next_sentence_loss")


def arrays(workdir: pathlib.Path, step: int) -> dict[str, np.ndarray]:
    """Returns all arrays of a checkpoint: parameters, moments and counts."""
    path = workdir / "checkpoints" / str(step) / "state"
    checkpointer = ocp.PyTreeCheckpointer()
    # NumPy arrays do not depend on the devices and processes that saved them.
    as_numpy = jax.tree.map(
        lambda _: ocp.RestoreArgs(restore_type=np.ndarray),
        checkpointer.metadata(path).item_metadata.tree,
    )
    return checkpointer.restore(path, restore_args=as_numpy)


def assert_same_bits(found: pathlib.Path, expected: pathlib.Path, step: int) -> None:
    np.testing.assert_equal(arrays(found, step), arrays(expected, step))


def lines(workdir: pathlib.Path) -> list[dict]:
    return [json.loads(t) for t in (workdir / "metrics.jsonl").read_text().splitlines()]


def exact_lines(workdir: pathlib.Path) -> list[list]:
    """Returns the metrics in EXACT of each line."""
    return [[line.get(name) for name in EXACT] for line in lines(workdir)]


def assert_same_metrics(
    found: pathlib.Path, expected: pathlib.Path, rtol: float = 0.0
) -> None:
    """Asserts equal evaluations, and equal sums of the losses of all steps.

    An interruption saves between two log lines and writes a line there, so that the
    lines of the two runs are means over different steps.
    """

    def evaluations(workdir):
        found = lines(workdir)
        return [
            {k: v for k, v in line.items() if k.startswith(("eval_", "dev_", "step"))}
            for line in found
            if "loss" not in line
        ]

    def total(workdir):
        steps = [
            (line["step"], line["loss"]) for line in lines(workdir) if "loss" in line
        ]
        before = [0, *(step for step, _ in steps)]
        return sum(
            (step - b) * loss for (step, loss), b in zip(steps, before, strict=False)
        )

    for a, b in zip(evaluations(found), evaluations(expected), strict=True):
        assert a.keys() == b.keys()
        np.testing.assert_allclose([*a.values()], [*b.values()], rtol=rtol)
    np.testing.assert_allclose(total(found), total(expected), rtol=max(rtol, 1e-6))


def step_secs(path: pathlib.Path) -> dict[int, float]:
    """Returns the seconds of each step in a trace, by the number of the step."""
    trace = jax.profiler.ProfileData.from_file(str(path))
    return {
        int(dict(event.stats)["step_num"]): event.duration_ns / 1e9
        for plane in trace.planes
        for line in plane.lines
        for event in line.events
        if event.name == "train"
    }
