"""Prepares a corpus: trains a tokenizer on raw text and tokenizes the text.

    python -m bert_jax.prepare --config=configs/X.py [--config.KEY=VALUE ...]

Reads config.data.sources, trains a vocabulary (or loads config.tokenizer.vocab_file)
and writes the corpus to config.data.corpus_dir, with --workers processes. Rerun the
same command to resume after an interruption or an error: tokenized text is kept, and
only corrected input files are tokenized again. A complete corpus is not changed. With
config.data.stream=True, writes an index of the text instead, see streamed.py.

With --ray=ADDRESS, the processes of a Ray cluster read, tokenize and write the same
files. Text and corpus must be in a bucket or on a disk that all of its nodes share.

The vocabulary is trained again if input files changed, unless the text is in a bucket
or more than 64 MB. If it stays the same, tokenized text is kept.
"""

import sys

from absl import flags

from bert_jax import cli
from bert_jax.data.corpus import build
from bert_jax.errors import ConfigError
from bert_jax.loading import init_from, new_run


def main() -> None:
    if _RAY.value and _SCRATCH_DIR.value:
        raise ConfigError(
            f"--scratch_dir={_SCRATCH_DIR.value}: with --ray, temporary files are in"
            " config.data.corpus_dir, which all nodes share; remove this flag"
        )
    if scratch_dir := _SCRATCH_DIR.value:
        scratch_dir = cli.local_directory("scratch_dir", scratch_dir)
    config = new_run.complete(cli.load_values(_CONFIG), cli.given_keys())
    tokenizer = init_from.tokenizer_of_corpus(config)
    try:
        build.prepare(
            config, _WORKERS.value, scratch_dir, tokenizer, _RAY.value or None
        )
    except KeyboardInterrupt:
        print("rerun the command to resume", file=sys.stderr)
        raise


if __name__ == "__main__":
    _CONFIG = cli.define_config()
    _WORKERS = flags.DEFINE_integer(
        "workers",
        None,
        "number of processes that tokenize and write; default: one per core of this"
        " machine, or of the cluster of --ray",
        lower_bound=1,
    )
    _SCRATCH_DIR = cli.define_path(
        "scratch_dir",
        "directory on a local disk for temporary files, which are about as large as the"
        " corpus; give the same one to resume; default: corpus_dir, or the system's"
        " temporary directory if corpus_dir is a bucket or on a network or FUSE file"
        " system",
    )
    _RAY = flags.DEFINE_string(
        "ray",
        None,
        "address of a Ray cluster that does the work: auto or HOST:PORT on one of its"
        " nodes, or local for a cluster of this machine alone",
    )
    cli.run(main, __doc__)
