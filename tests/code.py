"""Runs the Python code in its first argument, as `python -c` does."""

import sys

exec(sys.argv.pop(1))
