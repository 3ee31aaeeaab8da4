"""Starts every `python -m bert_jax.X` command: flags, --config, --help, exit codes.

A user error prints one line on stderr and exits with 2; a bug prints its traceback.
"""

import contextlib
import difflib
import importlib.util
import os
import re
import shlex
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import ml_collections
from absl import flags, logging
from ml_collections import config_flags
from ml_collections.config_flags import config_path

import bert_jax
from bert_jax import errors, storage
from bert_jax.config import from_config_dict
from bert_jax.distributed import devices, host_memory, preemption
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
SHIPPED = Path(bert_jax.__file__).parent / "configs"
NOT_A_CONFIG = ("__init__", "recipe")  # files in SHIPPED that other configs import
SIMILARITY = 0.6  # minimum, of 1, for the nearest key to be suggested
_directory = SHIPPED  # errors and --help list the configs in it
_config: ml_collections.ConfigDict | None = None  # the values of --config

flags.disclaim_key_flags()  # --config is a flag of the command that defines it


def define_config(directory: str = "") -> flags.FlagHolder:
    """Defines --config=FILE, whose values --config.KEY=VALUE overrides.

    Args:
      directory: the directory in SHIPPED whose configs the command reads.
    """
    global _directory
    _directory = SHIPPED / directory
    return flags.DEFINE_string(
        "config",
        None,
        f"path of a config file, or one of {_names()}; --config.KEY=VALUE overrides"
        " one of its keys",
        allow_overwrite=False,
    )


def run(main: Callable[[], None], doc: str | None, *, computes: bool = True) -> None:
    """Parses the flags, calls main, and exits with the exit code of its exception.

    Args:
      main: the command.
      doc: the first part of --help.
      computes: whether the command may compute on the CPU; False if it only compiles.
    """

    def without_arguments(rest: list[str]) -> None:
        if rest:
            raise ConfigError(f"unexpected argument {rest[0]!r}; see --help")
        main()

    run_with_rest(without_arguments, doc, known_only=False, computes=computes)


def run_with_rest(
    main: Callable[[list[str]], None],
    doc: str | None,
    *,
    known_only: bool = True,
    computes: bool = True,
) -> None:
    """Like `run`, but main takes the arguments that are not flags of the command."""
    if computes and not devices.has_accelerator():
        host_memory.keep_freed_memory()
    logging.set_verbosity(logging.ERROR)  # Orbax logs every file that it opens
    try:
        preemption.raise_interrupts()
        if {"-h", "-help", "--help"} & {*sys.argv[1:]}:
            print(_help(doc or ""), flush=True)
        elif "--version" in sys.argv[1:]:
            print(f"bert_jax {bert_jax.__version__}", flush=True)
        else:
            main(_parse(sys.argv, known_only))
    except flags.IllegalFlagValueError as error:
        # "flag --workers=0: 0 is not a positive integer"
        argument, _, reason = str(error).removeprefix("flag ").partition(": ")
        fail(f"{argument} is invalid: {_expected(argument) or reason}")
    except ConfigError as error:
        fail(str(error), error.exit_code)
    except flags.Error as error:
        fail(str(error))
    except KeyboardInterrupt:  # nothing to save yet
        print("stopped", file=sys.stderr)
        sys.exit(bert_jax.EXIT_FORCED)
    except StorageError as error:
        fail(str(error), EXIT_LOST)
    except Interrupted as error:
        with contextlib.suppress(OSError):  # the terminal may be closed
            print(INTERRUPTED.format(error), flush=True)
        exit_now(EXIT_INTERRUPTED)
    except BrokenPipeError:  # the reader of our output has exited, for example head
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(errors.EXIT_BROKEN_PIPE)
    except OSError as error:
        if error.errno in storage.FULL_DISK:
            where = f" for {error.filename}" if error.filename else ""
            fail(f"no space left on the disk{where}; free some and rerun the command")
        if error.errno not in storage.USERS_ERRORS or not error.filename:
            raise
        fail(f"{error.filename}: {error.strerror}; give another path")


def run_and_leave(
    main: Callable[[], None], doc: str | None, *, computes: bool = True
) -> None:
    """Like `run`, but after an error the process exits without joining its threads.

    XLA may compile in a thread for minutes. main must save before it raises.
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
        finally:  # exit even if stderr is closed
            exit_now(1)


def fail(message: str, exit_code: int = EXIT_USAGE) -> None:
    """Prints an error as one line on stderr, and exits."""
    print("error: " + " ".join(message.split()), file=sys.stderr)
    sys.exit(exit_code)


def load_config(
    holder: flags.FlagHolder, build: Callable[[Any], T] = from_config_dict
) -> T:
    """Builds the config from the values of --config.

    Raises:
      ConfigError: if --config is missing or invalid.
    """
    if _config is None:
        raise ConfigError(
            f"--{holder.name} is missing; give a file or one of {_names()}"
        )
    return build(_config)


def require(*names: str) -> list[str]:
    """Returns the values of flags.

    Raises:
      ConfigError: if one is absent or empty.
    """
    values = []
    for name in names:
        flag = flags.FLAGS[name]
        if not flag.value:
            raise ConfigError(f"--{name} is missing; give --{name}=VALUE: {flag.help}")
        values.append(flag.value)
    return values


def directory(flag: str, path: str) -> str:
    """Returns the path of a directory flag, which may be the URL of one in a bucket.

    Raises:
      ConfigError: if it is empty or a file, or there is no package for the URL.
    """
    if not path:
        raise ConfigError(f"--{flag}= is empty; give a directory")
    if storage.is_remote(path):
        storage.file_system(path)
        if flag == "workdir" and not path.startswith("gs://"):
            raise ConfigError(
                f"--workdir={path}: Orbax writes checkpoints to disks and to gs://"
                " only; give a directory, or mount the bucket"
            )
        return path.rstrip("/")
    for directory in (Path(path), *Path(path).parents):
        if directory.is_file():
            raise ConfigError(
                f"--{flag}={path}: {directory} is a file; give a directory"
            )
    return path


def local_directory(flag: str, path: str) -> str:
    """Like `directory`, but raises ConfigError if the path is a URL."""
    if storage.is_remote(path):
        raise ConfigError(
            f"--{flag}={path} is not a local directory; give a local one, and copy it"
            " to the bucket when the command has finished"
        )
    return directory(flag, path)


def config_name(holder: flags.FlagHolder) -> str:
    """Returns "tiny" for configs/tiny.py, "sizes-4-256" for configs/sizes.py:4,256."""
    file, _, argument = holder.value.partition(":")
    return "-".join([Path(file).stem, *re.findall(r"\w+", argument)])


def config_arguments() -> str:
    """Returns the --config arguments of this process, quoted for another command."""
    found, take_next = [], False
    for argument in sys.argv[1:]:
        is_config = argument.startswith("-") and argument.lstrip("-").startswith(
            "config"
        )
        if take_next or is_config:
            found.append(argument)
        take_next = is_config and "=" not in argument
    return shlex.join(found)


def _parse(argv: list[str], known_only: bool) -> list[str]:
    """Parses the flags, loads --config, and returns the remaining arguments."""
    global _config
    flags.FLAGS.set_gnu_getopt()  # flags may follow arguments
    rest = flags.FLAGS(argv, known_only=True)
    if name := "config" in flags.FLAGS and flags.FLAGS["config"].value:
        _config = _load(name)
        for argument in rest:
            if match := re.match(r"--?(?:no)?(config\.[^=]*)", argument):
                _check_key(match[1], _config, name)
        overrides = flags.FlagValues()
        overrides.set_gnu_getopt()
        config_flags.DEFINE_config_dict(
            "config", _config, flag_values=overrides, sys_argv=rest
        )
        rest = overrides(rest, known_only=True)
    return flags.FLAGS(rest, known_only=known_only)[1:]


def _load(name: str) -> ml_collections.ConfigDict:
    """Returns get_config() of a config file, or get_config(X) for --config=FILE:X."""
    file, colon, argument = name.partition(":")
    path = _find(file)
    spec = importlib.util.spec_from_file_location("config", path)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
        config = module.get_config(*[argument][: len(colon)])
    except ConfigError as error:
        raise ConfigError(f"--config={name}: {error}") from None
    except Exception as error:
        reason = f"{type(error).__name__}: {error}"
        raise ConfigError(f"--config={name} cannot be loaded: {reason}") from None
    if not isinstance(config, ml_collections.ConfigDict):
        raise ConfigError(f"--config={name}: get_config() must return a ConfigDict")
    return config


def _find(file: str) -> Path:
    """Returns the path of a config file, or of a shipped NAME or configs/NAME.py."""
    name = file.removeprefix("configs/").removesuffix(".py")
    for path in (Path(file), SHIPPED / f"{name}.py", _directory / f"{name}.py"):
        if path.is_file():
            if path.suffix != ".py":
                raise ConfigError(f"--config={file} is not a Python file; {_remedy()}")
            return path
    raise ConfigError(f"--config={file} is not a file; {_remedy()}")


def _names() -> str:
    names = {path.stem for path in _directory.glob("*.py")} - {*NOT_A_CONFIG}
    return ", ".join(sorted(names))


def _remedy() -> str:
    return f"give a file or one of {_names()}"


def _check_key(key: str, config: ml_collections.ConfigDict, file: str) -> None:
    """Raises ConfigError with the nearest key if the config does not have the key."""
    known = _keys(config, "config")
    if key in known:
        return
    nearest = max(known, key=lambda other: _similarity(key, other))
    remedy = f"the keys are in {file}"
    if _similarity(key, nearest) >= SIMILARITY:
        remedy = f"the nearest is --{nearest}"
    raise ConfigError(f"--{key} is not a config key; {remedy}")


def _keys(value: Any, path: str) -> list[str]:
    """Returns the paths that flags can set: a value, and those in a ConfigDict."""
    found = [path]
    if isinstance(value, ml_collections.ConfigDict):
        found += [k for key in value for k in _keys(value[key], f"{path}.{key}")]
    elif isinstance(value, list | tuple):
        for i, item in enumerate(value):
            if isinstance(item, ml_collections.ConfigDict):
                found += _keys(item, f"{path}[{i}]")
    return found


def _similarity(key: str, other: str) -> float:
    """Returns the mean similarity, 0 to 1, of two whole keys and their last parts."""
    wholes = key.removeprefix("config."), other.removeprefix("config.")
    lasts = [whole.rpartition(".")[2] for whole in wholes]
    ratios = [difflib.SequenceMatcher(None, a, b).ratio() for a, b in (wholes, lasts)]
    return sum(ratios) / 2


def _expected(argument: str) -> str:
    """Returns why a --config.KEY=VALUE is invalid; "" for other flags."""
    key = argument.partition("=")[0].lstrip("-").partition("config.")[2]
    if _config is None or not key:
        return ""
    value = config_path.get_value(key, _config)
    if isinstance(value, ml_collections.ConfigDict):
        return (
            "it is a section; set its keys, for example"
            f" --config.{key}.{next(iter(value))}"
        )
    return f"it must be of type {type(value).__name__}"


def _help(doc: str) -> str:
    # The first line of absl's text is the path of the command.
    _, _, text = flags.FLAGS.main_module_help().strip().partition("\n")
    common = "  --help, --version: print this text, or the version"
    return f"{doc.strip()}\n\nflags:\n{text}\n{common}"


def check(path: Path, source: str) -> None:
    """Raises ConfigError if --output cannot be written or is the file --input."""
    if path.absolute() == Path(source).absolute():
        raise ConfigError(f"--output={path} is the input file; give another file")
    if not path.parent.is_dir():
        raise ConfigError(
            f"--output={path} is in a directory that does not exist; create the"
            " directory"
        )
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
    """Yields a temporary path, which is renamed to `path` unless an error occurs."""
    tmp = path.with_name(path.name + ".tmp")
    try:
        yield tmp
        os.replace(tmp, path)
    except BaseException:
        tmp.unlink(missing_ok=True)
        raise
