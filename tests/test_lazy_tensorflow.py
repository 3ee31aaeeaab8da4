"""Tests of the lazy import of TensorFlow, in subprocesses."""

import pytest

from tests.commands import run_code


@pytest.mark.slow
def test_import_at_first_use_prints_nothing_and_leaves_keras_out():
    done = run_code(
        "import sys\n"
        "from bert_jax.lazy_tensorflow import tf\n"
        "assert 'tensorflow' not in sys.modules\n"
        "assert not tf.config.get_visible_devices('GPU')\n"
        "tf.data.Dataset.range(2)\n"
        "assert 'keras' not in sys.modules and 'scipy.stats' not in sys.modules\n"
        "tf.keras.Model\n"
        "print(int(tf.constant(7)))\n"
        "print('printed', file=sys.stderr)"
    )
    assert (done.stdout, done.stderr) == ("7\n", "printed\n")


def test_commands_import_what_they_need_and_not_tensorflow(tmp_path):
    done = run_code(
        "import sys\n"
        "import bert_jax.train\n"
        "names = ' '.join(name for name in sys.modules if 'bert_jax' in name)\n"
        "for room in ('finetuning', 'inference', 'interop', 'probes', 'branch',\n"
        "             'trackers', 'attention_gpu', 'build', 'streamed', 'sources'):\n"
        "    assert f'.{room}' not in names, room\n"
        "import bert_jax.evaluate, bert_jax.export, bert_jax.finetune\n"
        "from bert_jax.monitoring import writer\n"
        f"writer.MetricsWriter({str(tmp_path)!r}, 0).flush()\n"
        "assert 'tensorflow' not in sys.modules"
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert list(tmp_path.glob("events.out.tfevents.*"))


@pytest.mark.slow
def test_other_threads_can_print_during_the_import():
    done = run_code(
        "import sys, threading\n"
        "from bert_jax.lazy_tensorflow import tf\n"
        "thread = threading.Thread(target=lambda: tf.constant)\n"
        "thread.start()\n"
        "while 'tensorflow' not in sys.modules:\n"
        "    pass\n"
        "print('printed', file=sys.stderr)\n"
        "assert thread.is_alive()\n"
        "thread.join()"
    )
    assert (done.returncode, done.stderr) == (0, "printed\n")


def test_import_error_is_raised():
    done = run_code(
        "import sys\n"
        "sys.modules['tensorflow'] = None\n"
        "from bert_jax.lazy_tensorflow import tf\n"
        "tf.constant"
    )
    assert done.returncode == 1
    assert "ModuleNotFoundError" in done.stderr
