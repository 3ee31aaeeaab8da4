"""Exit codes, and the exceptions that end a command with one of them."""

from typing import ClassVar

EXIT_USAGE = 2
EXIT_INTERRUPTED = 75  # saved; rerun the same command
EXIT_LOST = 76  # a process is lost or hangs; rerun the same command
EXIT_DIVERGED = 77  # rerunning the same command does not help
EXIT_DAMAGED = 78  # rerunning the same command does not help
EXIT_BROKEN_PIPE = 141  # as shells report a process that SIGPIPE ended

INTERRUPTED = "interrupted: {}; the same command goes on from there"


class ConfigError(ValueError):
    """A mistake of the user's: one line with the key or file, the value, a remedy."""

    exit_code: ClassVar[int] = EXIT_USAGE

    def __init__(self, message: str):
        # Names and values may hold anything; a terminal is to be shown text alone.
        super().__init__("".join(map(_shown, message)))


class DamagedError(ConfigError):
    """Data or a checkpoint on disk is not what was written; names the file."""

    exit_code = EXIT_DAMAGED


class DivergedError(ConfigError):
    """Steps or parameters are not finite; the state must not be saved."""

    exit_code = EXIT_DIVERGED

    def __init__(self, step: int, what: str):
        super().__init__(f"{what}, up to step {step:,}")
        self.step = step

    def because(self, reason: str) -> "DivergedError":
        self.args = (f"{self}; {reason}",)
        return self


class Interrupted(Exception):
    """The run was asked to stop, and what it had done is saved."""


class StorageError(Exception):
    """Storage failed several times in a row; rerun the same command."""


def _shown(character: str) -> str:
    if character.isprintable():
        return character
    return " " if character in "\t\n\r" else repr(character)[1:-1]
