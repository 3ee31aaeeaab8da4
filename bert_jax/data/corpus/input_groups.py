"""Groups of input files, in which text is read and encoded into sorted runs.

Consecutive small files share a group; a large file is a group of its own, or, if it is
Parquet, several groups of consecutive row groups, which can be read on their own. The
name of a group is a hash of its files, with their sizes and modification times, and of
the settings on which their encoding depends, so runs with the same name can be reused.
An added, changed or removed file affects the runs of its own group, and of the next one
if it was the last of its group.
"""

import dataclasses
import functools
import hashlib
import itertools
import json
from collections.abc import Iterator, Sequence

from bert_jax import storage
from bert_jax.config import DataConfig
from bert_jax.data.corpus import sorted_runs, workers
from bert_jax.data.sources import lines, sources
from bert_jax.data.sources.kind import FileSource, InputFile, Source
from bert_jax.data.tokenizers import tokenizers
from bert_jax.errors import ConfigError
from bert_jax.monitoring.progress import Progress

BYTES_PER_MB = 2**20


@dataclasses.dataclass(frozen=True)
class Group:
    """Input files of one source that are read together."""

    source: int  # index in config.data.sources
    files: tuple[InputFile, ...]  # or parts of files; empty for a source without files
    name: str  # identifies the files, and the settings that concern their source only

    @property
    def text_bytes(self) -> int:
        return sum(file.text_bytes for file in self.files)


def plan(inputs: tuple[Source, ...], data: DataConfig, max_bytes: int) -> list[Group]:
    """Groups the files of all sources; several share a group of about max_bytes."""
    groups = []
    for number, source in enumerate(inputs):
        kind, parts = source.kind, source.files
        # A part of lines would lose the line numbers in messages.
        if isinstance(kind, FileSource) and not kind.is_line_based:
            divide = functools.partial(parts_of, kind=kind, max_bytes=max_bytes)
            parts = tuple(itertools.chain(*storage.in_threads(divide, source.files)))
        groups += [
            Group(number, files, _name(number, source, files, data))
            for files in _grouped(parts, max_bytes)
        ]
    return groups


def parts_of(file: InputFile, kind: FileSource, max_bytes: int) -> list[InputFile]:
    """Divides a file into parts, of at most max_bytes of text if possible."""
    if file.text_bytes <= max_bytes:
        return [file]
    try:
        parts = list(kind.parts(file, max_bytes))
    except ConfigError:  # reading the file raises it again
        return [file]
    # Sizes on disk that add up to that of the file.
    ends = [file.num_bytes * i // len(parts) for i in range(len(parts) + 1)]
    return [
        file._replace(num_bytes=end - start, part=part)
        for part, (start, end) in zip(parts, itertools.pairwise(ends), strict=True)
    ]


def _grouped(
    files: tuple[InputFile, ...], max_bytes: int
) -> list[tuple[InputFile, ...]]:
    """Groups the files of one source, ordered by path.

    A hash of its path decides whether a file ends its group, with a probability that
    makes groups of max_bytes on average, whatever the other files are. If there are no
    files, there is one group without files.
    """
    groups: list[list[InputFile]] = [[]]
    for file in files:
        share = file.text_bytes / max_bytes
        if share >= 1 and groups[-1]:
            groups.append([])
        groups[-1].append(file)
        place = json.dumps([storage.absolute(file.path), file.part])
        digest = hashlib.sha256(place.encode()).digest()
        if int.from_bytes(digest[:8], "big") < share * 2**64:
            groups.append([])
    return [tuple(group) for group in groups if group] or [()]


def _name(
    number: int, source: Source, files: tuple[InputFile, ...], data: DataConfig
) -> str:
    weight = data.source_weights[number] if data.source_weights else 1.0
    # Held-out documents are neither copied nor dropped, whatever the weight.
    fraction = data.validation_fraction if weight != 1 else None
    facts = [number, source.kind.format, source.version, weight, fraction]
    for path, *size_and_time, part in files:
        is_part = [part] if part != lines.WHOLE else []
        facts.append([storage.absolute(path), *size_and_time, *is_part])
    text = json.dumps(facts)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def write_runs(
    groups: list[Group],
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
    a large file. With `is_shared`, processes on other machines read it, a group each.
    `max_bytes` is the size of the text of a run, see `sorted_runs.batches`.
    """
    finished = sorted_runs.remove_all_but({group.name for group in groups}, directory)
    total = total_bytes / BYTES_PER_MB if total_bytes else None
    all_counts: list[lines.ReadCounts] = []
    complete = {x.name for x in groups if sorted_runs.has_group(finished, x.name)}
    missing = [group for group in groups if group.name not in complete]

    def batches() -> Iterator[sorted_runs.Batch]:
        for group in missing:
            counts = lines.ReadCounts()
            all_counts.append(counts)
            for batch in _batches(group, data, counts, max_bytes):
                if batch.name in finished:
                    progress.add(batch.num_bytes / BYTES_PER_MB, found_done=True)
                elif not counts.num_bad:
                    yield batch

    args = directory, data, tokenizer
    with Progress("tokenizing", total, "MB") as progress:
        num_done = sum(x.text_bytes for x in groups if x.name in complete)
        progress.add(num_done / BYTES_PER_MB, found_done=True)
        if is_shared:
            args = *args, finished, max_bytes
            missing.sort(key=lambda group: -group.text_bytes)
            for num_bytes, counts in run(GroupEncoder, args, missing):
                all_counts.append(counts)
                progress.add(num_bytes / BYTES_PER_MB)
        else:
            for num_bytes in run(sorted_runs.RunWriter, args, batches()):
                progress.add(num_bytes / BYTES_PER_MB)
    raise_bad(all_counts)


def _batches(
    group: Group, data: DataConfig, counts: lines.ReadCounts, max_bytes: int
) -> Iterator[sorted_runs.Batch]:
    files = [(file.path, file.part) for file in group.files]
    spec = data.sources[group.source]
    documents = sources.read(spec, data, counts, files)
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
        self._data = data
        self._write = sorted_runs.RunWriter(directory, data, tokenizer)
        self._finished, self._max_bytes = finished, max_bytes

    def __call__(self, group: Group) -> tuple[int, lines.ReadCounts]:
        """Writes the runs of a group; returns the size of its text, and the counts."""
        counts = lines.ReadCounts()
        num_bytes = 0
        for batch in _batches(group, self._data, counts, self._max_bytes):
            num_bytes += batch.num_bytes
            if not counts.num_bad and batch.name not in self._finished:
                self._write(batch)
        return num_bytes, counts


def raise_bad(all_counts: Sequence[lines.ReadCounts]) -> None:
    """Raises one ConfigError for all bad lines and files, if there are any."""
    num_bad = sum(counts.num_bad for counts in all_counts)
    messages = itertools.chain.from_iterable(counts.messages for counts in all_counts)
    listed = list(itertools.islice(messages, lines.LISTED))
    if num_bad == 1:
        raise ConfigError(listed[0])
    if num_bad:
        numbered = "; ".join(f"({i}) {text}" for i, text in enumerate(listed, start=1))
        rest = f"; and {num_bad - len(listed):,} more" if num_bad > len(listed) else ""
        raise ConfigError(
            f"{num_bad:,} lines or files of config.data.sources cannot be read:"
            f" {numbered}{rest}"
        )
