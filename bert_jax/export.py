"""Checkpoint -> a directory that other software loads.

    python -m bert_jax.export --workdir=DIR --output=DIR2 [--format=huggingface]
        [--step=N] [--corpus_dir=DIR]

DIR2 must not exist or be empty; it appears when it is complete.
"""

import os
import shutil
import tempfile
from pathlib import Path

from absl import flags

from bert_jax import command_line, runs
from bert_jax.config import ConfigError
from bert_jax.interop import huggingface

FORMATS = {"huggingface": huggingface.write}


def export(
    workdir: str,
    output: str,
    format_name: str,
    step: int | None = None,
    corpus_dir: str | None = None,
) -> None:
    """Writes a checkpoint of the run, see `runs.open_run`.

    Raises:
      ConfigError: when the output is in use or there is no such checkpoint.
    """
    target = Path(output)
    if target.is_file() or (target.is_dir() and any(target.iterdir())):
        raise ConfigError(f"--output={output} is in use; give a new directory")
    run = runs.open_run(workdir, step, corpus_dir)
    target.parent.mkdir(parents=True, exist_ok=True)
    tmp = Path(tempfile.mkdtemp(prefix=target.name + ".", dir=target.parent))
    try:
        FORMATS[format_name](tmp, run.state.params, run.config, run.corpus.tokenizer)
        tmp.chmod(0o755)  # mkdtemp keeps it to its owner
        if target.is_dir():
            target.rmdir()
        os.replace(tmp, target)
    except BaseException:
        shutil.rmtree(tmp)
        raise
    print(
        f"Exported step {run.step:,} to {output}. Load it with"
        f' transformers.BertForPreTraining.from_pretrained("{output}") or'
        f' transformers.AutoModel.from_pretrained("{output}").'
    )


def main() -> None:
    if not _WORKDIR.value or not _OUTPUT.value:
        missing = "output" if _WORKDIR.value else "workdir"
        raise ConfigError(f"--{missing} is missing; see --help")
    command_line.local_directory("workdir", _WORKDIR.value)
    command_line.local_directory("output", _OUTPUT.value)
    export(
        _WORKDIR.value,
        _OUTPUT.value,
        _FORMAT.value,
        _STEP.value,
        _CORPUS_DIR.value,
    )


if __name__ == "__main__":
    _WORKDIR = flags.DEFINE_string("workdir", None, "directory of a training run")
    _OUTPUT = flags.DEFINE_string("output", None, "new directory to write")
    _FORMAT = flags.DEFINE_enum("format", "huggingface", list(FORMATS), "what to write")
    _STEP = flags.DEFINE_integer(
        "step", None, "checkpoint to use; the newest if absent"
    )
    _CORPUS_DIR = flags.DEFINE_string(
        "corpus_dir", None, "where the run's corpus is, if it was moved"
    )
    command_line.run(main, __doc__)
