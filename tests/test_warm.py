"""Commands in forks of tests.warm behave as in a new interpreter."""

import signal

import pytest

from tests.commands import run, run_anew


@pytest.mark.parametrize(
    "arguments",
    [
        ("bert_jax.evaluate", "--no_such_flag=1"),
        ("bert_jax.evaluate", "--version"),
        ("bert_jax.evaluate",),
    ],
)
@pytest.mark.slow
def test_outputs_and_exit_codes_are_those_of_a_new_interpreter(arguments):
    warm, new = run(*arguments), run_anew(*arguments)
    assert (warm.returncode, warm.stdout) == (new.returncode, new.stdout)
    # A traceback has other frames, but the same last line.
    assert warm.stderr.splitlines()[-1:] == new.stderr.splitlines()[-1:]


def test_environment_directory_and_signals_reach_the_command(tmp_path):
    (tmp_path / "own_command.py").write_text(
        "import os, signal, sys\n"
        "import jax\n"
        "words = os.getcwd(), os.environ['OWN'], sys.argv[1], jax.device_count()\n"
        "print(*words, flush=True)\n"
        "os.kill(os.getpid(), signal.SIGKILL)"
    )
    found = run("own_command", "--x", devices=3, OWN="value")
    assert found.returncode == -signal.SIGKILL
    assert found.stdout == f"{tmp_path} value --x 3\n"
