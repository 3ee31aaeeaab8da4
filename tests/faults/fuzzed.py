"""Strategies for fuzzed inputs, and the check of how bert_jax handles them.

A fuzzed input must either work or raise a ConfigError with a one-line message.
"""

import pathlib
import tempfile
from collections.abc import Callable
from typing import Any

from hypothesis import strategies as st

from bert_jax.errors import ConfigError


def config_error(do: Callable[[], Any], *names: str) -> ConfigError | None:
    """Returns the ConfigError that `do` raises, or None if it raises nothing.

    The message must be one printable line that contains one of the names: of files, or
    "config.". Other exceptions are not caught.
    """
    try:
        do()
    except ConfigError as error:
        text = str(error)
        assert len(text.splitlines()) == 1 and text.isprintable(), repr(text)
        assert max(map(len, text.split("; ("))) < 2000, text  # of up to 20 faults
        assert any(name in text for name in names), text
        return error
    return None


def new_directory() -> pathlib.Path:
    """Returns a new empty directory for an example."""
    return pathlib.Path(tempfile.mkdtemp(dir=_root.name))


_root = tempfile.TemporaryDirectory(prefix="fuzzed-")


Edit = tuple[str, float, bytes]

# (kind, position as a fraction of the length, bytes) of each edit of a file.
edits = st.lists(
    st.tuples(
        st.sampled_from(("flip", "set", "cut", "end", "insert", "copy")),
        st.floats(0, 1),
        st.binary(min_size=1, max_size=12),
    ),
    min_size=1,
    max_size=3,
)


def edited(content: bytes, edits: list[Edit]) -> bytes:
    """Applies flips, cuts, copies and insertions to the content of a file."""
    data = bytearray(content)
    for kind, part, some in edits:
        place = min(int(part * len(data)), max(0, len(data) - 1))
        if kind == "flip" and data:
            data[place] ^= 1 << some[0] % 8
        elif kind == "set" and data:
            data[place] = some[0]
        elif kind == "cut":
            del data[place : place + len(some)]
        elif kind == "end":
            del data[place:]
        elif kind == "insert":
            data[place:place] = some
        elif kind == "copy":
            data[place:place] = data[: some[0]]
    return bytes(data)


# A JSON value of any type, including huge numbers and control characters.
JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.sampled_from(
        [0, -1, 2**31, 2**63, 2**200, 1e308, -0.0, "", "\x1b[2J\n", "../x"]
    )
    | st.floats()
    | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner)
    ),
    max_leaves=5,
)
