"""Tests of bert_jax.cli, mostly through the commands that it starts."""

import pathlib
import signal
import sys
import time

import pytest

import bert_jax
from bert_jax import cli, errors
from tests.commands import ROOT, error_of, run, run_code, run_program, run_well, start


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "--config is missing; give a file or one of babylm, base, base_mod"),
        (["--config=configs/tinny.py"], "--config=configs/tinny.py is not a file"),
        (
            ["--config=configs/babylm.py:10M"],
            "--config=configs/babylm.py:10M: '10M' is not a number of tokens; give the",
        ),
        (
            ["configs/tiny.py"],
            "unexpected argument 'configs/tiny.py'; write --config=configs/tiny.py",
        ),
        (
            ["--config=configs/large.py", "--config.data.sources=('tfds:a b#c',)"],
            "run: python -m bert_jax.prepare --config=configs/large.py"
            """ '--config.data.sources=('"'"'tfds:a b#c'"'"',)'""",
        ),
        (
            ["--config=configs/tiny.py", "--workdir=s3://b/r"],
            "checkpoints to disks and",
        ),
        (["--config=configs/tiny.py", "--workdir=" + "x" * 300], "File name too long"),
        (["--config=a.py", "--config=b.py"], "--config=b.py is invalid: already def"),
        (
            ["--config=README.md"],
            "--config=README.md is not a Python file; give a file or one of babylm,",
        ),
        (["--config=configs/tiny.py", "--workdir="], "--workdir= is empty; give"),
        (
            ["--config=configs/tiny.py", "--config.guard=5"],
            "for example --config.guard.max_bad_steps",
        ),
        (["--config"], "Missing value for flag --config; write --config=VALUE, see"),
        (
            ["--config=tiny", "--config.data.corpus_dir=README.md"],
            "config.data.corpus_dir='README.md' is a file; give a directory",
        ),
    ],
)
def test_a_mistake_on_the_command_line_is_one_line(arguments, message):
    pathlib.Path("README.md").touch()
    assert message in error_of("bert_jax.train", *arguments)


@pytest.mark.parametrize(
    ("command", "flag", "message"),
    [
        ("prepare", "--workers=0", "is invalid: it must be a positive integer"),
        ("prepare", "--scratch_dir=gs://b/x", "is not a local directory"),
        ("plan", "--hours=nan", "is invalid: it must be a finite number"),
    ],
)
def test_a_flag_with_an_invalid_value_is_one_line(command, flag, message):
    result = run(f"bert_jax.{command}", "--config=tiny", flag)
    assert (result.returncode, result.stdout) == (2, "")
    assert f"{flag} {message}" in result.stderr and result.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("x = 1", "the file has no function get_config; see"),
        ("open('/nonesuch')", "No such file or directory"),
        ("def get_config():\n  pass", "return a ConfigDict"),
    ],
)
def test_a_config_file_that_does_not_load_is_one_line(tmp_path, content, message):
    (tmp_path / "broken.py").write_text(content)
    arguments = [f"--config={tmp_path}/broken.py", "--config.seed=3"]
    assert message in error_of("bert_jax.train", *arguments)


def test_a_config_file_can_import_a_module_named_config(tmp_path):
    (tmp_path / "config.py").write_text("NAME = 'mine'\n")
    (tmp_path / "own.py").write_text(
        "from config import NAME\ndef get_config(): raise ValueError(NAME)\n"
    )
    arguments = [f"--config={tmp_path}/own.py"]
    error = error_of("bert_jax.train", *arguments, PYTHONPATH=f"{ROOT}:{tmp_path}")
    assert "ValueError: mine" in error


def test_help_names_flags_and_configs():
    stdout = run_well("bert_jax.train", "--help")
    assert stdout.startswith("Pretrains BERT") and "\nflags:\n  --config: " in stdout
    assert "--workdir" in stdout and "--config.KEY=VALUE" in stdout
    assert "base_modern, chinese" in stdout
    assert "/bert_jax/train.py" not in stdout  # absl prints the path of the command


def test_version_is_printed_by_every_command():
    for command in ("train", "checkpoint"):
        stdout = run_well(f"bert_jax.{command}", "--version")
        assert stdout == f"bert_jax {bert_jax.__version__}\n"


@pytest.mark.parametrize(
    ("file", "directory", "expected"),
    [
        ("tiny", "", "tiny.py"),
        ("configs/tiny.py", "", "tiny.py"),
        ("finetune/glue", "", "finetune/glue.py"),
        ("glue", "finetune", "finetune/glue.py"),
        ("configs/finetune/glue.py", "finetune", "finetune/glue.py"),
    ],
)
def test_shipped_configs_are_found_from_any_directory(
    file, directory, expected, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(cli, "_directory", cli.SHIPPED / directory)
    assert cli._find(file) == cli.SHIPPED / expected


def test_a_file_of_the_user_takes_precedence_over_a_shipped_config(
    tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "configs").mkdir()
    (tmp_path / "configs/tiny.py").touch()
    assert cli._find("configs/tiny.py") == pathlib.Path("configs/tiny.py")
    assert cli._find("tiny") == cli.SHIPPED / "tiny.py"


def test_help_of_finetune_lists_its_own_configs():
    stdout = run_well("bert_jax.finetune", "--help")
    assert "distill, glue" in stdout and "tiny" not in stdout
    assert "recipe," not in stdout
    assert max(map(len, stdout.splitlines())) <= 88


def test_a_closed_pipe_ends_help_quietly():
    process = start("bert_jax.inspect_batch", "--help")
    assert process.stdout is not None
    process.stdout.close()  # before it is written, as Python imports first
    process.stdout = None
    _, stderr = process.communicate(timeout=60)
    assert (process.returncode, stderr) == (errors.EXIT_BROKEN_PIPE, "")


@pytest.mark.parametrize(
    "arguments",
    [
        "--config=tiny --config.seed=3 --flag=x",
        "--config.seed=3 --flag=x --config=tiny",
        "-config.seed 3 -config configs/tiny.py --flag x",
    ],
)
@pytest.mark.slow
def test_overrides_may_precede_the_config_flag(arguments):
    program = f"""if True:
        import sys
        sys.argv[1:] = {arguments.split()}
        from absl import flags
        from bert_jax import cli
        config, flag = cli.define_config(), flags.DEFINE_string("flag", None, "a flag")
        def main():
            print(cli.load_values(config).seed, cli.config_name(config), flag.value)
        cli.run(main, "")
    """
    assert run_code(program).stdout == "3 tiny x\n"


def test_the_arguments_of_a_config_are_written_for_another_command(monkeypatch):
    arguments = (
        "-config tiny --config.seed 3 --x=1 --config.mesh.data -1 --config.remat"
    )
    monkeypatch.setattr(sys, "argv", ["train", *arguments.split(), "", "--noconfig.a"])
    expected = "--config=tiny --config.seed=3 --config.mesh.data=-1 --config.remat="
    assert cli.config_arguments() == f"{expected} --noconfig.a"


@pytest.mark.parametrize(
    ("raised", "code", "message"),
    [
        ("ConfigError('config.seed=x is wrong')", 2, "error: config.seed=x is wrong\n"),
        ("KeyError('a bug')", 1, "KeyError: 'a bug'\n"),
    ],
)
def test_an_error_exits_without_waiting_for_other_threads(raised, code, message):
    program = f"""if True:
        import threading
        from bert_jax import cli
        from bert_jax.errors import ConfigError
        def main():
            threading.Thread(target=threading.Event().wait).start()  # as if inside XLA
            print("printed before")
            raise {raised}
        cli.run_and_leave(main, "")
    """
    result = run_program(program)
    assert (result.returncode, result.stdout) == (code, "printed before\n")
    assert result.stderr.endswith(message)
    assert ("Traceback" in result.stderr) == (code == 1)


@pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
def test_ctrl_c_during_imports_prints_no_traceback():
    process = start("bert_jax.train", "--config=configs/tiny.py")
    maps = pathlib.Path(f"/proc/{process.pid}/maps")
    while "jaxlib" not in maps.read_text():  # imports go on for seconds after it
        assert process.poll() is None, process.communicate()
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    assert process.communicate(timeout=60) == ("", "stopped\n")
    assert process.returncode == 130


def test_ctrl_c_is_not_swallowed_by_a_callback_of_the_garbage_collector():
    """Python prints and drops an exception raised in such a callback; JAX has one."""
    program = """if True:
        import gc, os, signal, time
        from bert_jax import cli
        def main():
            asked = []
            def callback(phase, info):
                if not asked:
                    asked.append(os.kill(os.getpid(), signal.SIGINT))
            gc.callbacks.append(callback)
            gc.collect()
            assert asked
            print("went on", flush=True)
            for _ in range(500):
                time.sleep(0.01)
            print("swallowed")
        cli.run(main, "")
    """
    result = run_program(program)
    assert (result.returncode, result.stdout) == (130, "went on\n")
    assert result.stderr == "stopped\n"


@pytest.mark.parametrize(
    ("program", "words", "replaces"),
    [
        ("-m", ["python", "-m", "bert_jax.cli"], True),
        ("-m", ["python", "-m", "bert_jax", "train"], True),
        ("/usr/bin/bert-jax", ["python", "/usr/bin/bert-jax", "train"], True),
        ("-m", ["python", "-m", "json.tool"], False),
        ("x.py", ["python", "x.py", "bert_jax.cli"], False),
    ],
)
def test_only_commands_of_bert_jax_replace_the_handler_of_ctrl_c(
    program, words, replaces
):
    code = f"""if True:
        import signal, sys
        sys.argv[0], sys.orig_argv = {program!r}, {words}
        import bert_jax
        print(signal.getsignal(signal.SIGINT) is bert_jax.stop)
    """
    assert run_code(code).stdout == f"{replaces}\n"


# --------------------------------------------------------------------- output files


def test_an_output_file_appears_only_when_complete(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text("old")
    with pytest.raises(RuntimeError):
        with cli.replacing(path) as file:
            file.write("half")
            raise RuntimeError
    assert path.read_text() == "old" and len(list(tmp_path.iterdir())) == 1
    with cli.replacing(path) as file:
        file.write("new")
        assert path.read_text() == "old"
    assert path.read_text() == "new" and len(list(tmp_path.iterdir())) == 1


def test_no_other_file_than_the_output_is_written(tmp_path):
    """Neither one of a similar name, nor a link to the output."""
    (tmp_path / "disk").mkdir()
    (tmp_path / "a.jsonl").symlink_to("disk/real.jsonl")
    for name in ("a.jsonl.tmp", "disk/real.jsonl.tmp"):
        (tmp_path / name).write_text("precious")
    with cli.replacing(
        cli.output_file("output", str(tmp_path / "a.jsonl"), [".jsonl"])
    ) as file:
        file.write("new")
    assert (tmp_path / "disk" / "real.jsonl").read_text() == "new"
    assert (tmp_path / "a.jsonl").is_symlink()
    for name in ("a.jsonl.tmp", "disk/real.jsonl.tmp"):
        assert (tmp_path / name).read_text() == "precious"
    assert len([path for path in tmp_path.rglob("*") if path.is_file()]) == 4


@pytest.mark.parametrize(
    "name, message",
    [
        ("nowhere/a.txt", r"a.txt cannot be written \(No such file or directory\);"),
        ("train.csv", "^--output=/.*/train.csv must end in .jsonl or "),
        ("input.txt", "is the input file; give another file"),
        ("directory", "is a directory; give a file"),
        ("link", "/link is the input file; give another file"),
        ("/dev/null", "^--output=/dev/null is a device; give a file"),
        ("gs://b/a.jsonl", "gs://b/a.jsonl is not a local file; give one, and copy"),
        ("/proc/a.jsonl", r"=/proc/a.jsonl cannot be written \("),
    ],
)
def test_invalid_output_files(name, message, tmp_path):
    (tmp_path / "directory").mkdir()
    (tmp_path / "input.txt").touch()
    (tmp_path / "link").symlink_to("input.txt")
    path = name if "://" in name else str(tmp_path / name)
    with pytest.raises(errors.ConfigError, match=message):
        endings = ".jsonl", ".txt", "directory", "link", "null"
        cli.output_file("output", path, endings, str(tmp_path / "input.txt"))
