"""Prepares a corpus: trains a tokenizer on raw text and tokenizes the text.

    python -m bert_jax.prepare --config=configs/X.py [--config.KEY=VALUE ...]

Reads config.data.sources, trains a vocabulary (or loads config.tokenizer.vocab_file)
and writes the corpus to config.data.corpus_dir, with --workers processes. Rerun the
same command to resume after an interruption or an error: tokenized text is kept, and
only corrected input files are tokenized again. A complete corpus is not changed. With
config.data.stream=True, writes an index of the text instead, see streamed.py.

The vocabulary is trained again if input files changed, unless there are more than 16 MB
of text and at most 5% of it changed. If the vocabulary stays the same, tokenized text
is kept.
"""

from concurrent.futures.process import BrokenProcessPool

from absl import flags

from bert_jax import cli
from bert_jax.data.corpus import build
from bert_jax.errors import ConfigError
from bert_jax.loading import completion, initialize


def main() -> None:
    config = completion.complete(cli.load_values(_CONFIG), cli.given_keys())
    tokenizer = initialize.tokenizer_of_corpus(config)
    try:
        build.prepare(config, _WORKERS.value, _SCRATCH_DIR.value, tokenizer)
    except BrokenProcessPool:
        raise ConfigError(
            "a worker process was killed, most likely because memory ran out; completed"
            " work is kept: rerun the command with fewer --workers"
        ) from None


if __name__ == "__main__":
    _CONFIG = cli.define_config()
    _WORKERS = flags.DEFINE_integer(
        "workers",
        None,
        "number of processes that tokenize and write; default: one per core",
        lower_bound=1,
    )
    _SCRATCH_DIR = cli.define_path(
        "scratch_dir",
        "directory on a local disk for temporary files, which are about as large as the"
        " corpus, plus 1 GB per worker while sorted runs are merged; give the same one"
        " to resume; default: corpus_dir, or the system's temporary directory if"
        " corpus_dir is a bucket or on a network or FUSE file system",
    )
    cli.run(main, __doc__)
