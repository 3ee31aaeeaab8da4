"""Saves and restores the checkpoints of a run, with Orbax.

The checkpoint of a step holds every array of the TrainState under its path in the tree
(`params.bert.layers.0.output.kernel`), and a JSON item with the run's config, the
shapes and dtypes of the arrays, the data position and the library versions. SHA256SUMS
holds the digests of its files; it is written before the checkpoint is committed.
"""

import contextlib
import dataclasses
import errno
import importlib.metadata
import json
import os
import time
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import jax
import orbax.checkpoint as ocp
from orbax.checkpoint import checkpoint_managers

from bert_jax import storage
from bert_jax.checkpoint import integrity
from bert_jax.distributed import multihost, sharding, stopping
from bert_jax.errors import ConfigError, CorruptError
from bert_jax.model.parameters import leaves
from bert_jax.phases import Position
from bert_jax.storage import lease

T = TypeVar("T")
LIBRARIES = ("jax", "flax", "optax", "orbax-checkpoint")
# An upper bound for the size of the names, shapes and config in a checkpoint.
OVERHEAD_BYTES = 2**20
SHOWN_ARRAYS = 10  # number of mismatched arrays that an error lists


class _Manager(ocp.CheckpointManager):
    """Orbax's manager with two changes (seen with orbax-checkpoint 0.12.8).

    `preemption.interrupted` alone decides whether to stop. After a preemption notice,
    JAX stops a run at the step after the last one that it was queried with. Orbax
    queries it from its own thread at the end of a save, with the step of the save, when
    later steps have started, so a notice during the save would be lost.

    Orbax clears the error of a save when it raises it. If the training loop queried it,
    Orbax's finalize thread would find no error, and delete older checkpoints. So only
    that thread queries it. After an error, it waits for the other processes until a
    timeout, so the error is recorded before, and no caller waits for the thread.
    """

    _failure: Exception | None = None

    def reached_preemption(self, step: int) -> bool:
        return False

    def check_for_errors(self) -> None:
        if self._failure is not None:
            raise self._failure

    def _wait_for_checkpointers(self) -> None:
        try:
            super()._wait_for_checkpointers()
        except Exception as error:
            self._failure = error
            raise

    def _finalize(self, *arguments: Any) -> None:
        try:
            super()._finalize(*arguments)
        except Exception as error:  # of a deletion, or the timeout after an error
            self._failure = self._failure or error
            raise

    def wait_until_finished(self) -> None:
        while self._finalize_thread.map(lambda t: t is not None and t.is_alive()):
            self.check_for_errors()
            time.sleep(0.01)
        super().wait_until_finished()


class Checkpoints:
    """The checkpoints in a workdir.

    Saving is asynchronous: training continues while arrays are written. A checkpoint is
    committed when it is complete, so a killed run resumes from the one before.
    """

    def __init__(
        self,
        workdir: str,
        kept: checkpoint_managers.PreservationPolicy | None = None,
    ):
        """Opens the checkpoints of a workdir, read-only without a policy for them."""
        self.workdir = workdir
        self.directory = os.path.join(storage.absolute(workdir), integrity.DIRECTORY)
        self._step, self._num_bytes = 0, 0  # of the save in progress or the last one
        self._saves = 0
        self.saved_at = time.monotonic()  # of the last `save`, or of the start
        # The time of the last save, including its verification; 0 before the first.
        self.seconds_to_save = 0.0
        self._manager = _Manager(
            self.directory,
            item_handlers={
                # Compression saves 8% of the bytes of a state, and takes twice the CPU
                # time of all the rest of a save.
                "state": ocp.PyTreeCheckpointHandler(use_compression=False),
                "meta": ocp.JsonCheckpointHandler(),
            },
            options=ocp.CheckpointManagerOptions(
                preservation_policy=kept,
                create=kept is not None,
                read_only=kept is None,
                cleanup_tmp_directories=kept is not None,
                async_options=ocp.AsyncOptions(
                    timeout_secs=int(stopping.LONG_SECS),  # as the watchdog
                    post_finalization_callback=self._seal,
                ),
            ),
        )

    def steps(self) -> list[int]:
        """Returns the steps of all complete checkpoints, in ascending order."""
        return sorted(self._manager.all_steps())

    def save(
        self,
        step: int,
        state: Any,
        config: Any,
        position: Position,
        plan: dict[str, Any] | None = None,
    ) -> None:
        """Starts to save `state`, which may be donated after this returns.

        The config has `to_json`. The plan is the rest of the schedule, if the config
        does not determine it. It raises the error of the save before.
        """
        arrays = leaves(state)
        meta = {
            "config": json.loads(config.to_json()),
            "arrays": _describe(arrays),
            "position": {"step": step, **dataclasses.asdict(position)},
            "plan": plan,
            "versions": {name: importlib.metadata.version(name) for name in LIBRARIES},
        }
        self.wait()
        self._step, self.saved_at = step, time.monotonic()
        self._num_bytes = sum(x.nbytes for x in arrays.values()) + OVERHEAD_BYTES
        # `agree` needs unique names, and a process may save to several workdirs.
        self._saves += 1
        needed = self.workdir, step, self._num_bytes
        multihost.agree(
            f"space {self.directory} {self._saves}",
            lambda: integrity.ensure_space(*needed),
        )
        with self._raising_storage_errors():
            self._manager.save(
                step,
                args=ocp.args.Composite(
                    state=ocp.args.PyTreeSave(arrays), meta=ocp.args.JsonSave(meta)
                ),
            )

    def recover(self, name: str, on_found: Callable[[int], None] | None = None) -> int:
        """Like `integrity.recover`, in all processes; the name is that of this call."""
        step = multihost.agree(name, lambda: integrity.recover(self.workdir, on_found))
        self._manager.reload()  # corrupt checkpoints were moved
        return step

    def check_for_errors(self) -> None:
        """Raises the error of the save in progress, if it has failed."""
        with self._raising_storage_errors():
            self._manager.check_for_errors()

    def wait(self) -> None:
        """Waits for the save in progress, and raises its error if it fails."""
        with self._raising_storage_errors():
            self._manager.wait_until_finished()
            self._manager.check_for_errors()

    def close(self) -> None:
        """Waits for the save in progress, and stops Orbax's threads."""
        self.wait()
        self._manager.close()

    def restore(self, step: int, like: T, mesh: jax.sharding.Mesh) -> T:
        """Restores the state of a step, or a part of it, onto any mesh.

        `like` has the shapes, dtypes and partition specs, from `jax.eval_shape`, of the
        TrainState or of a part of it, for example {"params": params}.
        """
        wanted = leaves(like)
        parts = {name.split(".")[0] for name in wanted}
        saved = self._meta(step, lambda meta: dict(meta["arrays"]))
        saved = {n: array for n, array in saved.items() if n.split(".")[0] in parts}
        _check_arrays(saved, _describe(wanted), f"{self.directory}/{step}")
        abstract = sharding.on_mesh(wanted, mesh)
        restore = ocp.args.PyTreeRestore(
            abstract,
            ocp.checkpoint_utils.construct_restore_args(abstract),
            partial_restore=True,
        )
        arrays = self._restore(step, state=restore)["state"]
        restored = [arrays[name] for name in wanted]
        return jax.tree.unflatten(jax.tree.structure(like), restored)

    def position(self, step: int, corpus_sha256: str | None = None) -> Position:
        """Returns the position of the run in its data; checks the corpus if given."""
        position = self._meta(step, lambda meta: Position.from_json(meta["position"]))
        if corpus_sha256 not in (None, position.corpus_sha256):
            raise ConfigError(
                f"{self.directory}/{step} was not trained on the corpus in"
                " config.data.corpus_dir; set the key to the directory of the run's"
                " corpus, or restore the corpus there"
            )
        return position

    def plan(self, step: int) -> dict[str, Any] | None:
        return self._meta(step, lambda meta: meta.get("plan"))

    def _meta(self, step: int, read: Callable[[Any], T]) -> T:
        meta = self._restore(step, meta=ocp.args.JsonRestore())["meta"]
        try:
            return read(meta)
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise self._corrupt(step, f"its meta is invalid ({error!r})") from None

    def _restore(self, step: int, **items: ocp.args.CheckpointArgs) -> Any:
        try:
            return self._manager.restore(step, args=ocp.args.Composite(**items))
        except (MemoryError, jax.errors.JaxRuntimeError):
            raise
        except Exception as error:  # TensorStore, Orbax and json raise many types
            with storage.raise_storage_errors(f"{self.directory}/{step}"):
                if storage.is_transient(error):
                    raise
            if isinstance(error, OSError) and not isinstance(error, FileNotFoundError):
                raise  # for example a permission error; the files may be valid
            first = (str(error).splitlines() or [type(error).__name__])[0]
            reason = first.partition(". See full")[0]
            raise self._corrupt(step, reason) from None

    def _corrupt(self, step: int, reason: str) -> CorruptError:
        path, reason = f"{self.directory}/{step}", reason[:120]
        if integrity.verify(self.workdir, step):
            return CorruptError(
                f"{path} is corrupt ({reason}); restore it from a backup, or remove it"
                " to resume from the previous checkpoint"
            )
        return CorruptError(
            f"{path} cannot be read ({reason}), although its files match their digests;"
            " install the library versions in requirements.lock"
        )

    def _seal(self) -> None:
        """Writes the digests; Orbax calls this before it commits the checkpoint."""
        if multihost.is_first():
            is_renamed, start = not storage.is_remote(self.directory), time.monotonic()
            name = f"{self._step}{integrity.UNFINISHED if is_renamed else ''}"
            integrity.seal(os.path.join(self.directory, name))
            lease.confirm_all()
            now = time.monotonic()
            # A verification reads the same bytes again.
            self.seconds_to_save = (now - self.saved_at) + (now - start)

    @contextlib.contextmanager
    def _raising_storage_errors(self) -> Iterator[None]:
        """Raises storage errors as StorageError, and a full disk as ConfigError."""
        try:
            with storage.raise_storage_errors(
                f"step {self._step:,} is not saved in {self.directory}"
            ):
                yield
        except Exception as error:
            number = storage.error_number(error)
            if not storage.is_full_disk(error):
                raise
            raise integrity.no_space(
                self.workdir, self._step, self._num_bytes, number == errno.EDQUOT
            ) from None


def _describe(arrays: dict[str, Any]) -> dict[str, list[Any]]:
    return {name: [list(a.shape), a.dtype.name] for name, a in arrays.items()}


def _check_arrays(saved: dict[str, Any], wanted: dict[str, Any], path: str) -> None:
    """Raises ConfigError if names, shapes or dtypes differ; Orbax casts silently."""
    names = [n for n in sorted({*saved, *wanted}) if saved.get(n) != wanted.get(n)]
    if not names:
        return

    def shown(arrays: dict[str, Any], name: str) -> str:
        return "{1}{0}".format(*arrays[name]) if name in arrays else "none"

    rows = [
        f"{name}: checkpoint {shown(saved, name)}, config {shown(wanted, name)}"
        for name in names[:SHOWN_ARRAYS]
    ]
    more = ["..."] if len(names) > SHOWN_ARRAYS else []
    raise ConfigError(
        f"{path} does not match the config in {len(names)} array(s):"
        f" {'; '.join(rows + more)}; use the config of the run, or another --workdir"
    )
