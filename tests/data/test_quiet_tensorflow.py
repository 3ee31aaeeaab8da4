"""Tests of bert_jax.data.quiet_tensorflow in processes of their own."""

import subprocess
import sys

from tests.commands import ENV, ROOT


def python(code: str) -> subprocess.CompletedProcess:
    return subprocess.run(
        [sys.executable, "-c", code],
        cwd=ROOT,
        env=ENV,
        capture_output=True,
        text=True,
        timeout=300,
    )


def test_the_import_says_nothing_and_gives_stderr_back():
    done = python(
        "import sys\n"
        "from bert_jax.data.quiet_tensorflow import tf\n"
        "assert not tf.config.get_visible_devices('GPU')\n"
        "print(int(tf.constant(7)))\n"
        "print('heard', file=sys.stderr)"
    )
    assert (done.stdout, done.stderr) == ("7\n", "heard\n")


def test_a_failing_import_is_not_hidden():
    done = python(
        "import sys\n"
        "sys.modules['tensorflow'] = None\n"
        "import bert_jax.data.quiet_tensorflow"
    )
    assert done.returncode == 1
    assert "ModuleNotFoundError" in done.stderr
