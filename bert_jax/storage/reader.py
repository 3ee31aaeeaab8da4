"""Reads a file from any offset, and ranges of a file, with retries."""

import io
import os
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from bert_jax.storage.buckets import file_system, is_remote
from bert_jax.storage.retries import with_retries

T = TypeVar("T")


class Reader(io.RawIOBase):
    """A file opened for reading from any offset, with retries."""

    def __init__(self, path: str):
        self._path, self._offset = path, 0
        self._file: Any = None

    def readable(self) -> bool:
        return True

    seekable = readable

    def readinto(self, buffer: Any) -> int:
        data = self.read(len(buffer))
        buffer[: len(data)] = data
        return len(data)

    def read(self, size: int = -1) -> bytes:
        def once(file: Any) -> bytes:
            file.seek(self._offset)
            return file.read(size)

        data = self._with_file(once)
        self._offset += len(data)
        return data

    def _with_file(self, do: Callable[[Any], T]) -> T:
        def once() -> T:
            if self._file is None:
                self._file = _open(self._path)
            try:
                return do(self._file)
            except Exception:
                self._file = None  # it may not work, or be where it was, after an error
                raise

        return with_retries(once, self._path)

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        if whence == os.SEEK_CUR:
            offset += self._offset
        elif whence == os.SEEK_END:
            offset += self._with_file(lambda file: file.seek(0, os.SEEK_END))
        self._offset = offset
        return offset

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
        super().close()


def _open(path: str) -> Any:
    return file_system(path).open(path, "rb") if is_remote(path) else open(path, "rb")


def read_ranges(path: str, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
    """Returns the bytes of a file from the first of each range to before its end.

    Raises EOFError when the file ends before a range does.
    """
    starts = [start for start, end in ranges if start < end]
    ends = [end for start, end in ranges if start < end]

    def once() -> list[bytes]:
        if is_remote(path):
            paths = [path] * len(starts)
            return file_system(path).cat_ranges(paths, starts, ends, on_error="raise")
        parts = []
        with open(path, "rb") as file:
            for start, end in zip(starts, ends, strict=True):
                file.seek(start)
                parts.append(file.read(end - start))
        return parts

    parts = with_retries(once, path)
    if sum(map(len, parts)) < sum(ends) - sum(starts):
        raise EOFError(f"{path} is truncated")
    left = iter(parts)
    return [next(left) if start < end else b"" for start, end in ranges]
