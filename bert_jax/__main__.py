"""Runs a command: `bert-jax NAME` is the same as `python -m bert_jax.NAME`."""

import ast
import difflib
import runpy
import sys
from pathlib import Path

from bert_jax import __version__
from bert_jax.errors import EXIT_USAGE

# In the order in which a new user meets them.
COMMANDS = (
    "train prepare inspect_batch evaluate export finetune predict extract score"
    " checkpoint plan preflight"
).split()


def main() -> None:
    name = sys.argv[1] if len(sys.argv) > 1 else "--help"
    if name in ("-h", "-help", "--help"):
        print(overview())
    elif name == "--version":
        print(f"bert_jax {__version__}")
    elif name in COMMANDS:
        del sys.argv[1]
        runpy.run_module(f"bert_jax.{name}", run_name="__main__", alter_sys=True)
    else:
        nearest = difflib.get_close_matches(name, COMMANDS, n=1)
        remedy = f"the nearest is {nearest[0]}" if nearest else "see --help"
        print(f"error: {name!r} is not a command; {remedy}", file=sys.stderr)
        sys.exit(EXIT_USAGE)


def overview() -> str:
    """Returns the name and the first line of the docstring of every command."""
    width = max(map(len, COMMANDS))
    lines = [f"  {name:<{width}}  {summary(name)}\n" for name in COMMANDS]
    return (
        "bert-jax COMMAND [FLAGS], or python -m bert_jax.COMMAND [FLAGS]\n\n"
        f"{''.join(lines)}\npython -m bert_jax COMMAND --help describes a command."
    )


def summary(name: str) -> str:
    """Reads the first line of a command's docstring, without importing the command."""
    package = Path(__file__).parent
    path = package / f"{name}.py"
    if not path.is_file():
        path = package / name / "__main__.py"
    docstring = ast.get_docstring(ast.parse(path.read_text("utf-8"))) or ""
    return docstring.partition("\n")[0]


if __name__ == "__main__":
    main()
