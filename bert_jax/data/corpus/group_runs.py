"""Encodes groups of input files into sorted runs, on one machine or several."""

from collections.abc import Iterator

from bert_jax.config import DataConfig
from bert_jax.data.corpus import input_groups, sorted_runs, workers
from bert_jax.data.sources import lines
from bert_jax.data.tokenizers import tokenizers
from bert_jax.monitoring.progress import Progress

BYTES_PER_MB = 2**20


def write(
    groups: list[input_groups.Group],
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
      max_bytes: size of the text of a run, see `sorted_runs.batches`.
      is_shared: whether the tasks run on other machines.
    """
    finished = sorted_runs.remove_all_but({group.name for group in groups}, directory)
    total = total_bytes / BYTES_PER_MB if total_bytes else None
    all_counts: list[lines.ReadCounts] = []

    def unfinished() -> Iterator[input_groups.Group]:
        for group in groups:
            if sorted_runs.has_group(finished, group.name):
                progress.add(group.text_bytes / BYTES_PER_MB, found_done=True)
            else:
                yield group

    def batches() -> Iterator[sorted_runs.Batch]:
        for group in unfinished():
            counts = lines.ReadCounts()
            all_counts.append(counts)
            for batch in _batches(group, data, counts, max_bytes):
                if batch.name in finished:
                    progress.add(batch.num_bytes / BYTES_PER_MB, found_done=True)
                elif not counts.num_bad:
                    yield batch

    args = directory, data, tokenizer
    with Progress("tokenizing", total, "MB") as progress:
        if is_shared:
            args = *args, finished, max_bytes
            largest_first = sorted(unfinished(), key=lambda group: -group.text_bytes)
            for num_bytes, counts in run(GroupEncoder, args, largest_first):
                all_counts.append(counts)
                progress.add(num_bytes / BYTES_PER_MB)
        else:
            for num_bytes in run(sorted_runs.RunWriter, args, batches()):
                progress.add(num_bytes / BYTES_PER_MB)
    input_groups.raise_bad(all_counts)


def _batches(
    group: input_groups.Group,
    data: DataConfig,
    counts: lines.ReadCounts,
    max_bytes: int,
) -> Iterator[sorted_runs.Batch]:
    documents = input_groups.read(group.spec, group.files, data, counts)
    return sorted_runs.batches(group.name, group.source, documents, counts, max_bytes)


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
        self._data = data
        self._write = sorted_runs.RunWriter(directory, data, tokenizer)
        self._finished, self._max_bytes = finished, max_bytes

    def __call__(self, group: input_groups.Group) -> tuple[int, lines.ReadCounts]:
        """Writes the runs of a group; returns the size of its text, and the counts."""
        counts = lines.ReadCounts()
        num_bytes = 0
        for batch in _batches(group, self._data, counts, self._max_bytes):
            num_bytes += batch.num_bytes
            if not counts.num_bad and batch.name not in self._finished:
                self._write(batch)
        return num_bytes, counts
