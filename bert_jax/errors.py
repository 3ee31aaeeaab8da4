"""Exit codes, and the exceptions that end a command with one of them."""

EXIT_USAGE = 2
EXIT_INTERRUPTED = 75  # interrupted and saved; rerun the same command to resume
EXIT_LOST = 76  # a process was lost or hung; rerun the same command to resume
EXIT_DIVERGED = 77  # rerunning the same command does not help
EXIT_CORRUPT = 78  # rerunning the same command does not help
EXIT_BROKEN_PIPE = 141  # the code that shells report for SIGPIPE

INTERRUPTED = "interrupted: {}; rerun the same command to resume"


class ConfigError(ValueError):
    """An error that the user can fix: one line with key or file, value and remedy."""

    exit_code = EXIT_USAGE

    def __init__(self, message: str):
        # Names and values may contain control characters; do not print them raw.
        super().__init__("".join(map(_printable, message)))


class MissingObjectError(ConfigError):
    """There is no such object or bucket."""


class CorruptError(ConfigError):
    """A file of a corpus, checkpoint or model is corrupt or missing."""

    exit_code = EXIT_CORRUPT


class DivergedError(ConfigError):
    """The loss, gradients or parameters are not finite; the state must not be saved."""

    exit_code = EXIT_DIVERGED

    def __init__(self, step: int, what: str):
        super().__init__(f"{what}, up to step {step:,}")
        self.step = step


class AllDivergedError(ConfigError):
    """Every run of a sweep diverged before its first evaluation."""

    exit_code = EXIT_DIVERGED


class Interrupted(Exception):
    """The run was interrupted, and its progress is saved."""


class StorageError(Exception):
    """Storage failed several times in a row; rerun the same command."""

    exit_code = EXIT_LOST


def _printable(character: str) -> str:
    if character.isprintable():
        return character
    return " " if character in "\t\n\r" else repr(character)[1:-1]
