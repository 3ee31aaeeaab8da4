"""Encodes groups of input files into sorted runs, on one machine or several."""

from collections.abc import Iterator

from bert_jax.config import DataConfig
from bert_jax.data.corpus import encoding, input_groups, merging, sorted_runs, workers
from bert_jax.data.sources import lines
from bert_jax.data.tokenizers import tokenizers
from bert_jax.monitoring.progress import Progress

BYTES_PER_MB = 2**20


def write(
    reader: input_groups.Reader,
    data: DataConfig,
    tokenizer: tokenizers.Tokenizer,
    directory: str,
    max_bytes: int,
    total_bytes: int | None,
    run: workers.Executor,
    is_shared: bool,
) -> None:
    """Writes the runs of all groups, except for those that an earlier call has written.

    This process reads the text for its own worker processes, so that all of them encode
    a large file. Processes on other machines read it themselves, a group each.

    Args:
      reader: reads the groups.
      data: the config of the corpus.
      tokenizer: tokenizer of the corpus.
      directory: directory of the runs.
      max_bytes: size of the text of a run, see `sorted_runs.batches`.
      total_bytes: size of all text, if it is known.
      run: runs the tasks.
      is_shared: whether the tasks run on other machines.

    Raises:
      ConfigError: when lines or files cannot be read; lists all of them.
    """
    runs = merging.Finished(directory, encoding.id_dtype(tokenizer, data))
    runs.remove_all_but({group.name for group in reader.groups})
    total = total_bytes / BYTES_PER_MB if total_bytes else None
    all_counts: list[lines.ReadCounts | lines.BadLines] = []

    def unfinished() -> Iterator[input_groups.Group]:
        for group in reader.groups:
            if runs.has_group(group.name):
                progress.add(group.text_bytes / BYTES_PER_MB, found_done=True)
            else:
                yield group

    def batches() -> Iterator[sorted_runs.Batch]:
        for group in unfinished():
            documents, counts = reader.read(group)
            all_counts.append(counts)
            for batch in sorted_runs.batches(
                group.name, group.source, documents, counts, max_bytes
            ):
                if counts.num_bad:
                    continue
                if batch.name in runs.batches:
                    progress.add(batch.num_bytes / BYTES_PER_MB, found_done=True)
                else:
                    yield batch

    args = directory, data, tokenizer
    with Progress("tokenizing", total, "MB") as progress:
        if is_shared:
            args = *args, runs.batches, max_bytes
            largest_first = sorted(unfinished(), key=lambda group: -group.text_bytes)
            for num_bytes, bad in run(GroupEncoder, args, largest_first):
                all_counts.append(bad)
                progress.add(num_bytes / BYTES_PER_MB)
        else:
            for num_bytes in run(sorted_runs.RunWriter, args, batches()):
                progress.add(num_bytes / BYTES_PER_MB)
    input_groups.raise_bad(all_counts)


class GroupEncoder:
    """Reads groups and writes their runs, in a worker process."""

    def __init__(
        self,
        directory: str,
        data: DataConfig,
        tokenizer: tokenizers.Tokenizer,
        finished: set[str],
        max_bytes: int,
    ):
        """Creates an encoder; `finished` has the names of the batches with a run."""
        self._reader = input_groups.Reader([], data)
        self._write = sorted_runs.RunWriter(directory, data, tokenizer)
        self._finished, self._max_bytes = finished, max_bytes

    def __call__(self, group: input_groups.Group) -> tuple[int, lines.BadLines]:
        """Writes the runs of a group; returns the size of its text, and bad lines."""
        documents, counts = self._reader.read(group)
        num_bytes = 0
        for batch in sorted_runs.batches(
            group.name, group.source, documents, counts, self._max_bytes
        ):
            num_bytes += batch.num_bytes
            if not counts.num_bad and batch.name not in self._finished:
                self._write(batch)
        return num_bytes, lines.BadLines(counts.num_bad, counts.messages)
