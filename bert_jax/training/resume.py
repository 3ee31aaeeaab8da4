"""Locks the workdir of a run, and finds the step to resume at."""

from bert_jax.checkpoint import integrity
from bert_jax.checkpoint import workdir as workdir_lib
from bert_jax.config import ExperimentConfig
from bert_jax.distributed import multihost
from bert_jax.training import rollbacks


def is_begun(workdir: str, config: ExperimentConfig) -> bool:
    """Returns whether the workdir has a checkpoint to resume from.

    Raises:
      ConfigError: when its run has another config, or processes see different workdirs.
    """
    workdir_lib.check_config(workdir, config)
    found = bool(integrity.steps(workdir))
    multihost.check_same(
        "begun",
        str(found),
        f"--workdir={workdir} is not the same directory on all hosts; use a directory"
        " that all hosts share",
    )
    return found


def lock_workdir(workdir: str, config: ExperimentConfig) -> int:
    """Creates and locks the workdir, and moves corrupt checkpoints aside.

    Returns:
      The step of the newest valid checkpoint, 0 for a new run.

    Raises:
      ConfigError: when another process uses the workdir, or its run has another
        config.
      CorruptError: when there are checkpoints and all are corrupt.
    """
    multihost.make_shared("workdir", workdir)

    def lock() -> str:
        workdir_lib.lock(workdir)
        workdir_lib.check_config(workdir, config)
        return str(integrity.recover(workdir))

    return int(multihost.agree("first step", lock))


def begin_workdir(workdir: str, config: ExperimentConfig, first_step: int) -> None:
    """Writes the config; a run at step 0 also removes an old rollback record."""
    if multihost.is_first():
        if not first_step:
            rollbacks.clear(workdir)
        workdir_lib.write_config(workdir, config)


def end_workdir() -> None:
    """Releases the lock of a workdir in a bucket; the kernel releases others."""
    workdir_lib.unlock()
