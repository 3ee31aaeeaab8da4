"""Raw text -> tokenizer + token corpus.

    python -m bert_jax.prepare --config=configs/X.py [--config.KEY=VALUE ...]

Reads config.data.sources, trains a vocabulary (or takes config.tokenizer.vocab_file)
and writes the corpus to config.data.corpus_dir, with --workers processes. Rerun the
same command to resume after an interruption or an error: text that was tokenized is
kept, and a corrected input file is the only one that is tokenized again. A finished
corpus is left alone.

The vocabulary is trained again when input files changed, unless that was at most 5% of
over 16 MB of text; text that was tokenized is kept when the vocabulary is the same.
"""

from concurrent.futures.process import BrokenProcessPool

from absl import flags

from bert_jax import cli
from bert_jax.data.corpus import build
from bert_jax.errors import ConfigError


def main() -> None:
    config = cli.load_config(_CONFIG)
    try:
        build.prepare(config, _WORKERS.value, _SCRATCH_DIR.value)
    except BrokenProcessPool:
        raise ConfigError(
            "a process was killed, most likely because memory ran out; finished work is"
            " kept: rerun prepare with fewer --workers"
        ) from None


if __name__ == "__main__":
    _CONFIG = cli.define_config()
    _WORKERS = flags.DEFINE_integer(
        "workers",
        None,
        "processes that tokenize and write; one per core if not given",
        lower_bound=1,
    )
    _SCRATCH_DIR = flags.DEFINE_string(
        "scratch_dir",
        None,
        "directory on a local disk for temporary files, about as large as the corpus"
        " and 1 GB more a worker while runs are merged;"
        " if not given, corpus_dir, or the system's temporary directory when corpus_dir"
        " is a bucket or on a network or FUSE file system",
    )
    cli.run(main, __doc__)
