"""How every `python -m bert_jax.X` starts: flags in, exit codes out.

A mistake of the user's is one line on stderr and exit code 2; a fault of ours keeps its
traceback.
"""

import contextlib
import difflib
import glob
import os
import re
import shlex
import sys
import tempfile
import textwrap
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import ml_collections
from absl import flags, logging
from ml_collections import config_flags
from ml_collections.config_flags import config_path

from bert_jax import EXIT_FORCED, errors, storage
from bert_jax.config import from_config_dict
from bert_jax.distributed import host_memory, preemption
from bert_jax.distributed.multihost import exit_now
from bert_jax.errors import (
    EXIT_INTERRUPTED,
    EXIT_LOST,
    EXIT_USAGE,
    INTERRUPTED,
    ConfigError,
    Interrupted,
    StorageError,
)

T = TypeVar("T")
_config_directory = "configs"
NO_CONFIG = "recipe.py"  # what those of tasks begin with
# What a key of the config takes, by the type of what is there.
KINDS: dict[type, str] = {
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    tuple: "values with commas between them, in brackets",
}
LIKE = 0.6  # of 1: a key that may be meant
HELP_COLUMNS = 88  # as wide as what stands above the flags


def define_config(directory: str = "configs") -> flags.FlagHolder:
    """Defines --config=FILE, whose keys --config.KEY=VALUE overrides.

    Args:
      directory: whose files are told where one is missing.
    """
    global _config_directory
    _config_directory = directory
    return config_flags.DEFINE_config_file(
        "config", None, "config file, one of those below or your own", lock_config=True
    )


def run(main: Callable[[], None], doc: str | None, *, computes: bool = True) -> None:
    """Parses the flags, calls main, and exits with the code of what went wrong.

    Args:
      main: the command.
      doc: what --help begins with.
      computes: whether the command may compute on the CPU, rather than compile alone.
    """

    def without_rest(rest: list[str]) -> None:
        if rest:
            raise ConfigError(f"unexpected argument {rest[0]!r}; see --help")
        main()

    run_with_rest(without_rest, doc, known_only=False, computes=computes)


def run_with_rest(
    main: Callable[[list[str]], None],
    doc: str | None,
    *,
    known_only: bool = True,
    computes: bool = True,
) -> None:
    """As `run`, but main gets the arguments that are no flags of ours."""
    if computes and not host_memory.has_accelerator():
        host_memory.keep_freed_memory()
    logging.set_verbosity(logging.ERROR)  # Orbax tells of every file it touches
    argv = sys.argv[:] = _config_first(sys.argv)  # config_flags reads sys.argv
    is_help = any(arg in ("-h", "--help", "-help") for arg in argv[1:])
    num_configs = sum(map(_is_config_file, argv[1:]))
    if num_configs > 1 and not is_help:  # absl takes the last, with its keys
        fail("--config is given more than once; give it once")
    try:
        preemption.raise_interrupts()
        if is_help:
            print(_help(doc or ""), flush=True)
            sys.exit(0)
        main(flags.FLAGS(argv, known_only=known_only)[1:])
    except flags.IllegalFlagValueError as error:
        # "flag --config=FILE: Error whilst parsing config file: TRACEBACK"
        if "Error whilst parsing config file" in str(error):
            cause = _first_cause(error)
            fail(_no_python(_config_file(argv)) or f"--config: {cause}")
        # "flag --config.seed=abc: invalid literal for int() with base 10: 'abc'"
        argument, _, reason = str(error).removeprefix("flag ").partition(": ")
        fail(f"{argument} does not fit: {_wanted(argument, argv) or reason}")
    except ConfigError as error:
        fail(str(error), error.exit_code)
    except flags.Error as error:
        fail(str(error))
    except KeyboardInterrupt:  # before there was anything to save
        print("stopped", file=sys.stderr)
        sys.exit(EXIT_FORCED)
    except StorageError as error:
        fail(str(error), EXIT_LOST)
    except Interrupted as error:
        with contextlib.suppress(OSError):  # a terminal that is gone
            print(INTERRUPTED.format(error), flush=True)
        exit_now(EXIT_INTERRUPTED)
    except BrokenPipeError:  # what reads our output wants no more, as head
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(errors.EXIT_BROKEN_PIPE)
    except OSError as error:
        if error.errno in storage.FULL_DISK:
            where = f" for {error.filename}" if error.filename else ""
            fail(f"no space left on the disk{where}; make room and start again")
        if error.errno not in storage.USERS_ERRORS or not error.filename:
            raise
        fail(f"{error.filename}: {error.strerror}; give another path")
    except Exception as error:
        # While flags are parsed, config_flags raises this for unknown keys and whatever
        # a config file does wrong; the same exceptions from main are our own faults.
        if flags.FLAGS.is_parsed():
            raise
        fail(_config_mistake(error, argv))


def run_and_leave(
    main: Callable[[], None], doc: str | None, *, computes: bool = True
) -> None:
    """As `run`, but where something went wrong no thread is waited for at the end.

    XLA may be compiling in one for minutes. What is to be saved has to be when main
    raises.
    """
    try:
        run(main, doc, computes=computes)
    except SystemExit as end:
        if isinstance(end.code, int) and end.code:
            exit_now(end.code)
        raise
    except Exception:
        try:
            traceback.print_exc()
        finally:  # whether or not anybody listens
            exit_now(1)


def fail(message: str, exit_code: int = EXIT_USAGE) -> None:
    """Prints one line and exits, unless told otherwise as for a user's mistake."""
    print("error: " + " ".join(message.split()), file=sys.stderr)
    sys.exit(exit_code)


def load_config(
    holder: flags.FlagHolder, build: Callable[[Any], T] = from_config_dict
) -> T:
    """Returns the checked config of --config, as `build` makes it of a ConfigDict.

    Raises:
      ConfigError: when there is no --config or it does not fit together.
    """
    if holder.value is None:
        raise ConfigError(f"--config is missing; give it one of: {_configs_here()}")
    path = config_flags.get_config_filename(flags.FLAGS[holder.name])
    if not Path(path.split(":")[0]).is_file():
        raise ConfigError(f"--config={path} is not a file; try {_configs_here()}")
    if not isinstance(holder.value, ml_collections.ConfigDict):
        raise ConfigError(_no_config_dict(path, holder.value))
    return build(holder.value)


def require(*names: str) -> list[str]:
    """Returns the values of flags.

    Raises:
      ConfigError: for the first that is absent or empty.
    """
    values = []
    for name in names:
        flag = flags.FLAGS[name]
        if not flag.value:
            raise ConfigError(f"--{name} is missing; give --{name}=VALUE: {flag.help}")
        values.append(flag.value)
    return values


def local_directory(flag: str, path: str) -> str:
    """Returns the path of a directory flag.

    Raises:
      ConfigError: when it is empty, a URL or a file.
    """
    if not path:
        raise ConfigError(f"--{flag}= is empty; give a directory")
    if "://" in path:
        raise ConfigError(
            f"--{flag}={path} is not a local directory; give one, and copy it to the"
            " bucket when the command is done"
        )
    for directory in (Path(path), *Path(path).parents):
        if directory.is_file():
            raise ConfigError(
                f"--{flag}={path}: {directory} is a file; give a directory"
            )
    return path


def config_name(holder: flags.FlagHolder) -> str:
    """Returns "tiny" for configs/tiny.py, "sizes-4-256" for configs/sizes.py:4,256."""
    path = config_flags.get_config_filename(flags.FLAGS[holder.name])
    file, _, argument = path.partition(":")
    return "-".join([Path(file).stem, *re.findall(r"\w+", argument)])


def config_arguments() -> str:
    """Returns the --config arguments of this call, quoted for another command line."""
    found, take_next = [], False
    for argument in sys.argv[1:]:
        is_config = argument.lstrip("-").startswith("config")
        if take_next or (argument.startswith("-") and is_config):
            found.append(argument)
        take_next = argument.startswith("-") and is_config and "=" not in argument
    return shlex.join(found)


def _first_cause(error: BaseException) -> BaseException:
    """Returns what a config file raised, which config_flags wraps."""
    while cause := error.__cause__ or error.__context__:
        error = cause
    return error


def _config_mistake(error: Exception, argv: list[str]) -> str:
    """Says what is wrong with the --config arguments, which config_flags only hints."""
    arguments = [a.lstrip("-") for a in argv[1:] if a.lstrip("-").startswith("config")]
    file = _config_file(argv)
    path = file.split(":")[0]
    if not Path(path).is_file():
        return f"--config={path} is not a file; try {_configs_here()}"
    try:
        config = config_flags.config_flags._ConfigFileParser("config").parse(file)
    except Exception as reason:
        cause = _first_cause(reason)
        if message := _no_python(path):
            return message
        return f"--config={path} cannot be loaded: {type(cause).__name__}: {cause}"
    if not isinstance(config, ml_collections.ConfigDict):
        return _no_config_dict(path, config)
    for argument in arguments:
        key = argument.partition("=")[0]
        if key == "config":
            continue
        known = list(_keys(config, "config"))
        if key not in known:
            close = _nearest(key, known)
            remedy = f"the nearest is --{close}" if close else f"its keys are in {path}"
            return f"--{key} is not a config key; {remedy}"
    return f"--config={path} failed to load: {error}"


def _nearest(key: str, known: list[str]) -> str:
    """Returns the key most like it as a whole and in its last part; "" if none is."""

    def likeness(other: str) -> float:
        wholes = key.removeprefix("config."), other.removeprefix("config.")
        lasts = [whole.rpartition(".")[2] for whole in wholes]
        ratios = [
            difflib.SequenceMatcher(None, a, b).ratio() for a, b in (wholes, lasts)
        ]
        return sum(ratios) / 2

    best = max(known, key=likeness)
    return best if likeness(best) >= LIKE else ""


def _no_python(file: str) -> str:
    path = file.split(":")[0]
    if path.endswith(".py"):
        return ""
    return f"--config={path} is not a Python file; try {_configs_here()}"


def _wanted(argument: str, argv: list[str]) -> str:
    """Says what a key of the config takes, "" where the argument is of none."""
    key = argument.partition("=")[0].lstrip("-").partition(".")[2]
    if not argument.lstrip("-").startswith("config.") or not key:
        return ""
    config = config_flags.config_flags._ConfigFileParser("config").parse(
        _config_file(argv)
    )
    value = config_path.get_value(key, config)
    if isinstance(value, ml_collections.ConfigDict):
        return f"it holds keys, set one of them, as --config.{key}.{next(iter(value))}"
    for kind, words in KINDS.items():
        if isinstance(value, kind):
            return f"it must be {words}"
    return ""


def _no_config_dict(path: str, value: object) -> str:
    # Where a config file raises an OSError, config_flags gives an object that raises it
    # when anything is asked of it.
    try:
        getattr(value, "seed", None)
    except OSError as error:
        return f"--config={path} cannot be loaded: {_first_cause(error)}"
    return f"--config={path}: get_config() must return a ConfigDict"


def _is_config_file(argument: str) -> bool:
    is_flag = argument.startswith("-")
    return is_flag and argument.lstrip("-").partition("=")[0] == "config"


def _config_first(argv: list[str]) -> list[str]:
    """Returns the arguments with --config before its keys, which absl wants so."""
    is_key = lambda x: x.startswith("-") and x.lstrip("-").startswith("config.")  # noqa: E731
    for i, argument in enumerate(argv):
        if argument == "--":
            break
        if _is_config_file(argument):
            end = i + (1 if "=" in argument else 2)
            if end > len(argv):  # it has no value
                break
            keys = [x for x in argv[1:i] if is_key(x)]
            others = [x for x in argv[1:i] if not is_key(x)]
            return [argv[0], *others, *argv[i:end], *keys, *argv[end:]]
    return argv


def _config_file(argv: list[str]) -> str:
    """Returns what is given for --config, by = or as the next argument."""
    file = ""
    for argument, following in zip(argv[1:], [*argv[2:], ""], strict=True):
        _, equals, value = argument.partition("=")
        if _is_config_file(argument):
            file = value if equals else following
    return file


def _keys(value: object, path: str) -> list[str]:
    """Returns the path of every value in a config that can be overridden."""
    if isinstance(value, ml_collections.ConfigDict):
        return [k for key in value for k in _keys(value[key], f"{path}.{key}")]
    if isinstance(value, list | tuple) and value:
        if isinstance(value[0], ml_collections.ConfigDict):
            return [
                k for i, v in enumerate(value) for k in _keys(v, f"{path}[{i}]")
            ] + [path]
    return [path]


def _configs_here() -> str:
    files = glob.glob(f"{_config_directory}/[!_]*.py")
    named = sorted(file for file in files if Path(file).name != NO_CONFIG)
    return ", ".join(named) or "a config file"


def _help(doc: str) -> str:
    own = flags.FLAGS.get_key_flags_for_module(sys.modules["__main__"])
    shared = flags.FLAGS.get_key_flags_for_module(sys.modules[__name__])
    lines = [doc.strip(), "", "flags:"]
    for flag in (*shared, *own):
        lines.append(_help_entry(flag))
        if flag.name == "config":
            lines.append("  --config.KEY=VALUE: overrides a key of the config file")
            lines.append(_wrapped(f"config files here: {_configs_here()}"))
    return "\n".join(lines)


def _help_entry(flag: flags.Flag) -> str:
    values, text = "", flag.help or ""
    if isinstance(flag, flags.EnumFlag):  # absl puts "<a|b>: " before its help
        values, _, text = text.partition(": ")
    default = f" (default: {flag.default})" if flag.default is not None else ""
    return _wrapped(f"--{flag.name}{values and '='}{values}: {text}{default}")


def _wrapped(text: str) -> str:
    return textwrap.fill(
        text,
        HELP_COLUMNS,
        initial_indent="  ",
        subsequent_indent="      ",
        break_long_words=False,
        break_on_hyphens=False,
    )


def check(path: Path, source: str) -> None:
    """Raises ConfigError when --output cannot be a file, or is --input `source`."""
    if path.absolute() == Path(source).absolute():
        raise ConfigError(f"--output={path} is --input; give another file")
    if not path.parent.is_dir():
        raise ConfigError(f"--output={path} is in a directory that does not exist")
    if path.is_dir():
        raise ConfigError(f"--output={path} is a directory; give a file")
    try:
        with tempfile.NamedTemporaryFile(dir=path.parent):
            pass
    except OSError as error:
        raise ConfigError(
            f"--output={path} cannot be written ({error.strerror}); give another file"
        ) from None


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Gives a path to write to, which becomes `path` if nothing goes wrong."""
    tmp = path.with_name(path.name + ".tmp")
    try:
        yield tmp
        os.replace(tmp, path)
    except BaseException:
        tmp.unlink(missing_ok=True)
        raise
