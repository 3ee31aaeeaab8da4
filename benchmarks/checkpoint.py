"""Measures the cost of checkpoints: blocking time, digests, and slower steps.

    python -m benchmarks.checkpoint [--size=base|large] [--layers=N] [--batch=8]
        [--repeats=2] [--steps=20]

Prints rows for the seconds that `save` blocks the training loop, compared with waiting
until the save completes; the seconds to digest and to verify a checkpoint, compared
with the whole save; and the steps per second with a save every `--steps`, compared with
no saves. Lower bound: the state has 12 bytes per parameter, 1.3 GB for base; SHA-256
processes about 1.9 GB/s on one core, and writing is limited by the disk.
"""

import argparse
import tempfile
import time

import jax
from orbax.checkpoint.checkpoint_managers import LatestN

from benchmarks import rows, train_step
from bert_jax import digests
from bert_jax.checkpoint import integrity
from bert_jax.checkpoint.manager import Checkpoints
from bert_jax.distributed import devices, sharding
from bert_jax.distributed import mesh as mesh_lib
from bert_jax.phases import Position
from bert_jax.training import step as step_lib


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--size", choices=("base", "large"), default="base")
    parser.add_argument("--layers", type=int, help="fewer layers than the size has")
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--steps", type=int, default=20)
    args = parser.parse_args()
    args.length, args.dtype, args.packed, args.dropout = 128, "auto", False, 0.1
    with tempfile.TemporaryDirectory(prefix="bert_jax-checkpoints-") as workdir:
        measure(args, workdir)


def measure(args: argparse.Namespace, workdir: str) -> None:
    devices.keep_freed_memory()
    config = train_step.make_config(args)
    run = Run(config, train_step.make_batch(config), workdir)
    run.take_steps(2)  # compiles
    case = f"{args.size}, {run.num_bytes / 1e9:.2f} GB of state"

    blocking, whole, seal, verify = [], [], [], []
    for _ in range(args.repeats + 1):
        start = time.perf_counter()
        run.save()
        blocking.append(time.perf_counter() - start)
        run.checkpoints.wait()
        whole.append(time.perf_counter() - start)
        directory = integrity.directory_of(workdir, run.step)
        seal.append(timed(integrity.seal, directory))
        verify.append(timed(digests.verify, directory))
        run.step += 1
    # The first save is not counted: it creates directories and allocates memory.
    rows.print_row(
        "checkpoint",
        f"{case}: blocked by a save",
        "s",
        blocking[1:],
        "until it is on disk, digests included",
        whole[1:],
    )
    rows.print_row(
        "checkpoint", f"{case}: digests", "s", seal[1:], "the whole save", whole[1:]
    )
    rows.print_row("checkpoint", f"{case}: verify", "s", verify[1:])

    without, with_saves = [], []
    for _ in range(args.repeats):
        without.append(args.steps / timed(run.take_steps, args.steps))
        with_saves.append(args.steps / timed(run.save_and_take, args.steps))
    rows.print_row(
        "checkpoint",
        f"{case}: {args.batch}x{args.length}, a save every {args.steps} steps",
        "steps/s",
        with_saves,
        "no save",
        without,
    )
    run.checkpoints.close()


class Run:
    """A train step with its state and checkpoints."""

    def __init__(self, config, batch, workdir: str):
        mesh = mesh_lib.make_mesh(config.mesh)
        jax.set_mesh(mesh)
        graphdef, init = step_lib.init_state(config)
        self._train_step = jax.jit(
            step_lib.make_train_step(config, graphdef), donate_argnums=0
        )
        self._config, self._batch = config, sharding.place_batch(batch, mesh)
        self._state = init()
        self.num_bytes = sum(x.nbytes for x in jax.tree.leaves(self._state))
        self.checkpoints = Checkpoints(workdir, LatestN(config.checkpoint.keep))
        self.step = 1

    def take_steps(self, number: int) -> None:
        for _ in range(number):
            self._state, _ = self._train_step(self._state, self._batch)
            jax.block_until_ready(self._state)

    def save(self) -> None:
        position = Position("a benchmark's")
        self.checkpoints.save(self.step, self._state, self._config, position)

    def save_and_take(self, number: int) -> None:
        """Saves, takes steps, and waits until the save completes, as the next would."""
        self.save()
        self.step += 1
        self.take_steps(number)
        self.checkpoints.wait()


def timed(function, *arguments) -> float:
    start = time.perf_counter()
    function(*arguments)
    return time.perf_counter() - start


if __name__ == "__main__":
    main()
