"""Starts every `python -m bert_jax.X` command: flags, --config, --help, exit codes.

A user error prints one line on stderr and exits with 2; a bug prints its traceback.
"""

import contextlib
import math
import os
import re
import runpy
import shlex
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import IO, Any

import ml_collections
from absl import flags, logging
from ml_collections import config_flags

import bert_jax
from bert_jax import errors, overrides, storage
from bert_jax.distributed import devices, preemption, stopping
from bert_jax.errors import ConfigError, Interrupted, StorageError

SHIPPED = Path(bert_jax.__file__).parent / "configs"
# Not listed: modules that other configs import, and sizes.py, which has an argument.
NOT_A_CONFIG = ("__init__", "recipe", "sizes")
_directory = SHIPPED  # errors and --help list the configs in it
_config: ml_collections.ConfigDict | None = None  # the values of --config
_paths: list[str] = []  # the flags of `define_path`

flags.disclaim_key_flags()  # --config is a flag of the command that defines it


def define_config(directory: str = "") -> flags.FlagHolder:
    """Defines --config=FILE, one of `directory` in SHIPPED, and --config.KEY=VALUE."""
    global _directory
    _directory = SHIPPED / directory
    return flags.DEFINE_string(
        "config",
        None,
        f"path of a config file, or one of {_names()}; --config.KEY=VALUE overrides"
        " one of its keys",
        allow_overwrite=False,
    )


def define_path(name: str, help: str) -> flags.FlagHolder:
    """Defines --NAME=PATH; `run` gives it the normal form of `storage.parse_path`."""
    _paths.append(name)
    return flags.DEFINE_string(name, None, help)


def run(
    main: Callable[..., None],
    doc: str | None,
    *,
    computes: bool = True,
    takes_arguments: bool = False,
) -> None:
    """Parses the flags, calls main, and exits with the exit code of its exception.

    After a success, it returns if this is the only process of a run.

    Args:
      doc: the first part of --help.
      computes: whether the command may compute on the CPU; False if it only compiles.
      takes_arguments: whether main takes a list of arguments that are not flags.
    """
    if computes and not devices.has_accelerator():
        devices.keep_freed_memory()
    logging.set_verbosity(logging.ERROR)  # Orbax logs every file that it opens
    try:
        preemption.raise_interrupts()
        if {"-h", "-help", "--help"} & {*sys.argv[1:]}:
            print(_help(doc or ""), flush=True)
        elif "--version" in sys.argv[1:]:
            print(f"bert_jax {bert_jax.__version__}", flush=True)
        else:
            rest = _parse(sys.argv)
            if takes_arguments:
                main(rest)
            elif rest:
                problem = f"unexpected argument {rest[0]!r}; {_as_flag(rest[0])}"
                raise ConfigError(problem)
            else:
                main()
                stopping.end()
    except KeyboardInterrupt:  # nothing to save yet
        print("stopped", file=sys.stderr)
        fail("stopped", bert_jax.EXIT_FORCED, prints=False)
    except Interrupted as error:
        with contextlib.suppress(OSError):  # the terminal may be closed
            print(errors.INTERRUPTED.format(error), flush=True)
        stopping.exit_now(errors.EXIT_INTERRUPTED)
    except BrokenPipeError:  # the reader of our output has exited, for example head
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        fail("standard output is closed", errors.EXIT_BROKEN_PIPE, prints=False)
    except Exception as error:
        if (message := _message(error)) is None:
            stopping.stop_after(error)
            raise
        fail(message, getattr(error, "exit_code", errors.EXIT_USAGE))


def _message(error: Exception) -> str | None:
    """Returns the line to print for a user's mistake; None for a bug."""
    if isinstance(error, flags.IllegalFlagValueError):
        # "flag --workers=0: 0 is not a positive integer"
        argument, _, reason = str(error).removeprefix("flag ").partition(": ")
        return f"{argument} is invalid: {_expected(argument) or reason}"
    if isinstance(error, flags.UnrecognizedFlagError):
        own = [flag.name for flag in flags.FLAGS.get_key_flags_for_module(sys.argv[0])]
        return overrides.unknown_flag(error.flagname, own, _config)
    if isinstance(error, flags.Error) and "Missing value" in str(error):
        return f"{error}; write {str(error).split()[-1]}=VALUE, see --help"
    if isinstance(error, ConfigError | StorageError | flags.Error):
        return str(error)
    if storage.is_full_disk(error):
        path = getattr(error, "filename", None)
        where = f" for {path}" if path else f" ({error})"
        return f"no space left on the disk{where}; free some and rerun the command"
    if not isinstance(error, OSError):
        return None
    if error.errno in storage.USERS_ERRORS and error.filename:
        return f"{error.filename}: {error.strerror}; give another path"
    return None


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
            stopping.exit_now(end.code)
        raise
    except Exception:
        try:
            traceback.print_exc()
        finally:  # exit even if stderr is closed
            stopping.exit_now(1)


def fail(message: str, exit_code: int, *, prints: bool = True) -> None:
    """Prints an error as one line on stderr, and ends all processes of the run."""
    stopping.stop_all(" ".join(message.split()), exit_code, prints=prints)
    sys.exit(exit_code)


def load_values(holder: flags.FlagHolder) -> ml_collections.ConfigDict:
    """Returns the values of --config and of the flags that override them."""
    if _config is None:
        raise ConfigError(f"--{holder.name} is missing; {_remedy()}")
    return _config


def given_keys() -> frozenset[str]:
    """Returns the keys of the config that flags set, such as "model.hidden_size"."""
    return overrides.keys_of(sys.argv[1:])


def require(*names: str) -> list[str]:
    """Returns the values of flags that may be neither absent nor empty."""
    values = []
    for name in names:
        flag = flags.FLAGS[name]
        if not flag.value:
            raise ConfigError(f"--{name} is missing; give --{name}=VALUE: {flag.help}")
        values.append(flag.value)
    return values


def exclude(name: str, *others: str) -> None:
    """Raises ConfigError if one of the other flags is given too."""
    for other in others:
        if flags.FLAGS[other].present:
            raise ConfigError(
                f"--{name} and --{other} are mutually exclusive; give one"
            )


def directory(flag: str, path: str) -> str:
    """Checks a directory flag, which may be the URL of one in a bucket."""
    if not path:
        raise ConfigError(f"--{flag}= is empty; give a directory")
    path = storage.parse_path(f"--{flag}", path)
    if storage.is_remote(path):
        if flag == "workdir" and not path.startswith("gs://"):
            raise ConfigError(
                f"--workdir={path}: Orbax writes checkpoints to disks and to gs://"
                " only; give a directory, or mount the bucket"
            )
        return path
    for part in (Path(path), *Path(path).parents):
        if part.is_file():
            raise ConfigError(f"--{flag}={path}: {part} is a file; give a directory")
    return path


def local_directory(flag: str, path: str) -> str:
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
    """Returns the --config arguments of this process, quoted for another command.

    Each is written as --config.KEY=VALUE.
    """
    arguments, needs_value = [], False
    for argument in sys.argv[1:]:
        is_flag = argument.startswith("-") and not re.match(r"-\.?\d", argument)
        if needs_value and not is_flag:
            arguments[-1] += f"={argument}"
        is_config = re.match("--?(no)?config[.=]|--?config$", argument)
        if is_config:
            arguments.append(f"--{argument.lstrip('-')}")
        needs_value = bool(is_config) and "=" not in argument
    return shlex.join(arguments)


def _parse(argv: list[str]) -> list[str]:
    """Parses the flags, loads --config, and returns the remaining arguments."""
    global _config
    flags.FLAGS.set_gnu_getopt()  # flags may follow arguments
    rest = flags.FLAGS(argv, known_only=True)
    if name := "config" in flags.FLAGS and flags.FLAGS["config"].value:
        _config = _load(name)
        overrides.check_keys(rest, _config, name)
        rest = overrides.with_tuples(rest, _config)
        values = flags.FlagValues()
        values.set_gnu_getopt()
        config_flags.DEFINE_config_dict(
            "config", _config, flag_values=values, sys_argv=rest
        )
        rest = values(rest, known_only=True)
    rest = flags.FLAGS(rest)[1:]
    for name, value in flags.FLAGS.flag_values_dict().items():
        if isinstance(value, float) and not math.isfinite(value):
            raise ConfigError(
                f"--{name}={value} is invalid: it must be a finite number"
            )
    for name in _paths:
        if path := flags.FLAGS[name].value:
            flags.FLAGS[name].value = storage.parse_path(f"--{name}", path)
    return rest


def _load(name: str) -> ml_collections.ConfigDict:
    """Returns get_config() of a config file, or get_config(X) for --config=FILE:X."""
    file, colon, argument = name.partition(":")
    path = str(_find(file))
    try:
        module = runpy.run_path(path, run_name="__config__")
        if "get_config" not in module:
            raise ConfigError(
                "the file has no function get_config; see configs/tiny.py"
            )
        config = module["get_config"](*[argument][: len(colon)])
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
    given = Path(storage.parse_path("--config", file))
    for path in (given, SHIPPED / f"{name}.py", _directory / f"{name}.py"):
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


def _as_flag(argument: str) -> str:
    """Returns the remedy for an argument that is not a flag."""
    with contextlib.suppress(ConfigError):
        if "config" in flags.FLAGS and _find(argument.partition(":")[0]):
            return f"write --config={argument}"
    return "write --NAME=VALUE; see --help"


def _expected(argument: str) -> str:
    """Returns why the value of --NAME=VALUE is invalid, or ""."""
    if reason := overrides.expected(argument, _config):
        return reason
    parser = flags.FLAGS[argument.partition("=")[0].lstrip("-")].parser
    syntax = parser.syntactic_help or {"bool": "true or false"}.get(parser.flag_type())
    return f"it must be {syntax}" if syntax else ""


def _help(doc: str) -> str:
    # The first line of absl's text is the path of the command.
    _, _, text = flags.FLAGS.main_module_help().strip().partition("\n")
    common = "  --help, --version: print this text, or the version"
    return f"{doc.strip()}\n\nflags:\n{text}\n{common}"


def print_notes(notes: Iterable[str]) -> None:
    """Prints what the user should know of a model, on stderr."""
    for note in notes:
        print(f"note: {note}", file=sys.stderr)


def output_file(flag: str, path: str, endings: Sequence[str], source: str = "") -> Path:
    """Checks a file to write, other than `source`; returns the target of a link.

    A file with another ending is not replaced: it may be the user's data.
    """
    if not path.endswith(tuple(endings)):
        raise ConfigError(f"--{flag}={path} must end in {' or '.join(endings)}")
    if storage.is_remote(path):
        raise ConfigError(
            f"--{flag}={path} is not a local file; give one, and copy it to the bucket"
        )
    target = Path(os.path.realpath(path))
    if source and target == Path(os.path.realpath(source)):
        raise ConfigError(f"--{flag}={path} is the input file; give another file")
    if target.exists() and not target.is_file():
        kind = "directory" if target.is_dir() else "device"
        raise ConfigError(f"--{flag}={path} is a {kind}; give a file")
    try:
        with tempfile.NamedTemporaryFile(dir=target.parent):
            pass
    except OSError as error:
        raise ConfigError(
            f"--{flag}={path} cannot be written ({error.strerror}); create its"
            " directory, or give another file"
        ) from None
    return target


@contextlib.contextmanager
def replacing(path: Path, mode: str = "x") -> Iterator[IO[Any]]:
    """Yields a file of another name, renamed to `path` unless an error occurs.

    The mode is "x" for text and "xb" for bytes.
    """
    encoding = None if "b" in mode else "utf-8"
    with storage.replacing(str(path)) as tmp:
        with storage.open_own(tmp, mode, encoding=encoding) as file:
            yield file
