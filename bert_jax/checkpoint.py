"""Checkpoints of a run: state, position and how it was made; on Orbax.

A step's checkpoint holds every array of the TrainState under its path in the tree
(`params.bert.layers.0.output.kernel`), and a JSON item with the run's config, the
shapes and dtypes of those arrays, the data position and the versions of the libraries.
"""

import importlib.metadata
import json
from pathlib import Path
from typing import Any, TypeVar

import jax
import orbax.checkpoint as ocp
from jax.sharding import NamedSharding

from bert_jax.config import CheckpointConfig, ConfigError, ExperimentConfig
from bert_jax.model import path_name
from bert_jax.steps import TrainState

T = TypeVar("T")
LIBRARIES = ("jax", "flax", "optax", "orbax-checkpoint")


class Checkpoints:
    """The checkpoints in a workdir.

    Saving is asynchronous: the step goes on while arrays are written. A checkpoint
    counts only when it is complete, so a killed run finds the one before.
    """

    def __init__(self, workdir: str, config: CheckpointConfig | None = None):
        """Opens the workdir's checkpoints; to write new ones give a config."""
        self.directory = Path(workdir).absolute() / "checkpoints"
        self._manager = ocp.CheckpointManager(
            self.directory,
            item_names=("state", "meta"),
            options=ocp.CheckpointManagerOptions(
                max_to_keep=config.keep if config else None,
                create=config is not None,
                read_only=config is None,
                cleanup_tmp_directories=config is not None,
            ),
        )

    def steps(self) -> list[int]:
        """Returns the steps that have a complete checkpoint, in rising order."""
        return sorted(self._manager.all_steps())

    def save(
        self,
        step: int,
        state: TrainState,
        config: ExperimentConfig,
        corpus_sha256: str,
    ) -> None:
        """Starts saving `state`, which may be donated as soon as this returns."""
        arrays = _by_path(state)
        meta = {
            "config": json.loads(config.to_json()),
            "arrays": _describe(arrays),
            "position": {"step": step, "corpus_sha256": corpus_sha256},
            "versions": {name: importlib.metadata.version(name) for name in LIBRARIES},
        }
        self._manager.save(
            step,
            args=ocp.args.Composite(
                state=ocp.args.PyTreeSave(arrays), meta=ocp.args.JsonSave(meta)
            ),
        )

    def restore(self, step: int, like: T, mesh: jax.sharding.Mesh) -> T:
        """Reads a step's state, or a part of it, onto the mesh.

        Args:
          step: one of `steps()`.
          like: shapes, dtypes and partition specs of the TrainState, by
            `jax.eval_shape`, or of what is wanted of it: {"params": its params}.
          mesh: any mesh; it need not be the one that saved.

        Raises:
          ConfigError: when the checkpoint's arrays are not those of `like`, with a
            table of the first that differ.
        """
        wanted = _by_path(like)
        parts = {name.split(".")[0] for name in wanted}
        found = {n: a for n, a in self.arrays(step).items() if n.split(".")[0] in parts}
        _check_arrays(found, _describe(wanted), f"{self.directory}/{step}")
        abstract = {
            name: jax.ShapeDtypeStruct(
                array.shape,
                array.dtype,
                sharding=NamedSharding(mesh, _spec(array)),
            )
            for name, array in wanted.items()
        }
        restore = ocp.args.PyTreeRestore(
            abstract,
            ocp.checkpoint_utils.construct_restore_args(abstract),
            partial_restore=True,
        )
        arrays = self._restore(step, state=restore)["state"]
        leaves = [arrays[name] for name in wanted]
        return jax.tree.unflatten(jax.tree.structure(like), leaves)

    def arrays(self, step: int) -> dict[str, list[Any]]:
        """Returns [shape, dtype] of every array of a step, by its path."""
        arrays = self._meta(step).get("arrays")
        if not isinstance(arrays, dict):
            raise self._damaged(step, "no list of its arrays")
        return arrays

    def check_corpus(self, step: int, corpus_sha256: str) -> None:
        """Raises ConfigError when the step was trained on another corpus."""
        position = self._meta(step).get("position")
        if not isinstance(position, dict):
            raise self._damaged(step, "no position in the data")
        if position.get("corpus_sha256") != corpus_sha256:
            raise ConfigError(
                f"{self.directory}/{step} was trained on another corpus than the one in"
                " config.data.corpus_dir; give that, or another --workdir"
            )

    def _meta(self, step: int) -> dict[str, Any]:
        meta = self._restore(step, meta=ocp.args.JsonRestore())["meta"]
        if not isinstance(meta, dict):
            raise self._damaged(step, "meta is no object")
        return meta

    def _restore(self, step: int, **items: ocp.args.CheckpointArgs) -> Any:
        try:
            return self._manager.restore(step, args=ocp.args.Composite(**items))
        except (MemoryError, jax.errors.JaxRuntimeError):
            raise
        except Exception as error:  # of TensorStore, Orbax and json, of any type
            first = (str(error).splitlines() or [type(error).__name__])[0]
            reason = first.partition(". See full")[0]
            raise self._damaged(step, reason) from None

    def _damaged(self, step: int, reason: str) -> ConfigError:
        return ConfigError(
            f"{self.directory}/{step} is damaged ({reason[:120]}); remove it and"
            " continue from the one before, or restore it from a copy"
        )

    def close(self) -> None:
        """Waits for saves under way; raises what went wrong in them."""
        self._manager.wait_until_finished()
        self._manager.check_for_errors()
        self._manager.close()


def newest_step(workdir: str) -> int:
    """Returns the newest step with a complete checkpoint, 0 when there is none."""
    directory = Path(workdir) / "checkpoints"
    if not directory.is_dir():
        return 0
    # Not Orbax, which waits for all processes: one that sees no directory never comes.
    names = (path.name for path in directory.iterdir())
    return max((int(name) for name in names if name.isdigit()), default=0)


def _by_path(state: Any) -> dict[str, Any]:
    leaves, _ = jax.tree_util.tree_flatten_with_path(state)
    return {path_name(path): leaf for path, leaf in leaves}


def _spec(array: jax.ShapeDtypeStruct) -> jax.P:
    # Scalars come out of eval_shape without a layout.
    return array.sharding.spec if array.sharding else jax.P()


def _describe(arrays: dict[str, Any]) -> dict[str, list[Any]]:
    return {name: [list(a.shape), a.dtype.name] for name, a in arrays.items()}


def _check_arrays(found: dict[str, Any], wanted: dict[str, Any], path: str) -> None:
    """Raises ConfigError when names, shapes or dtypes differ (Orbax casts silently)."""
    names = [n for n in sorted({*found, *wanted}) if found.get(n) != wanted.get(n)]
    if not names:
        return
    rows = "; ".join(
        f"{name}: checkpoint {_shape(found.get(name))}, config"
        f" {_shape(wanted.get(name))}"
        for name in names[:3]
    )
    raise ConfigError(
        f"{path} does not fit the config in {len(names)} array(s): {rows}; use the"
        " config of the run, or another --workdir"
    )


def _shape(entry: list[Any] | None) -> str:
    return "none" if entry is None else f"{entry[1]}{entry[0]}"
