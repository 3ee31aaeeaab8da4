"""Runs commands, `python -m bert_jax.X`, in processes of their own."""

import functools
import json
import os
import pathlib
import random
import signal
import subprocess
import sys
import tempfile
import textwrap
import threading
import time

ROOT = pathlib.Path(__file__).parent.parent
ONE_PHASE = f"--config={ROOT}/tests/one_phase.py"

LIMIT_SECS = 1500

# One simulated device, unless a test asks for more.
ENV = {
    **os.environ,
    "JAX_PLATFORMS": "cpu",
    "XLA_FLAGS": "--xla_force_host_platform_device_count=1",
}


def start(
    module: str, *args: str, devices: int = 1, **environment: str
) -> subprocess.Popen:
    flags = f"--xla_force_host_platform_device_count={devices}"
    return subprocess.Popen(
        [sys.executable, "-m", module, *args],
        env=ENV | {"XLA_FLAGS": flags} | environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def run(
    module: str, *args: str, devices: int = 1, **environment: str
) -> subprocess.CompletedProcess:
    """Runs a command to its end, in a fork that has imported the libraries.

    Imports take half of the CPU time of a small run. A new interpreter is started if a
    test changes ENV or gives variables that libraries read when they are imported.
    """
    if ENV != ENV_OF_TESTS or any(k.startswith(READ_AT_IMPORT) for k in environment):
        return run_anew(module, *args, devices=devices, **environment)
    flags = f"--xla_force_host_platform_device_count={devices}"
    env = ENV | {"XLA_FLAGS": flags} | environment
    with tempfile.TemporaryDirectory() as directory:
        out, err = (pathlib.Path(directory) / name for name in ("stdout", "stderr"))
        out.touch(), err.touch()
        request = {"module": module, "args": args, "cwd": os.getcwd(), "env": env}
        code = ask_warm(request | {"stdout": str(out), "stderr": str(err)})
        return subprocess.CompletedProcess(args, code, out.read_text(), err.read_text())


def run_anew(module: str, *args: str, **kwargs) -> subprocess.CompletedProcess:
    """Runs a command to its end in a new interpreter."""
    process = start(module, *args, **kwargs)
    stdout, stderr = process.communicate(timeout=LIMIT_SECS)
    return subprocess.CompletedProcess(args, process.returncode, stdout, stderr)


READ_AT_IMPORT = (
    *("JAX_", "XLA_", "TF_", "GCS_", "TPU_", "LIBTPU", "PYTHON", "LD_", "MALLOC"),
)
ENV_OF_TESTS = dict(ENV)
_lock = threading.Lock()


def ask_warm(request: dict) -> int:
    """Returns the return code of a command that tests.warm runs."""
    with _lock:
        server = start_warm()
        assert server.stdin is not None and server.stdout is not None
        server.stdin.write(json.dumps(request) + "\n")
        server.stdin.flush()
        limit = threading.Timer(LIMIT_SECS, os.killpg, (server.pid, signal.SIGKILL))
        limit.start()
        try:
            answer = server.stdout.readline()
        finally:
            limit.cancel()
        if not answer:
            start_warm.cache_clear()
            raise subprocess.TimeoutExpired(request["args"], LIMIT_SECS)
        return int(answer)


@functools.cache
def start_warm() -> subprocess.Popen:
    return subprocess.Popen(
        [sys.executable, "-m", "tests.warm"],
        env=ENV,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,  # its process group includes the commands
    )


def run_well(module: str, *args: str, **kwargs) -> str:
    """Runs a command that must succeed and returns its standard output."""
    result = run(module, *args, **kwargs)
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


def error_of(module: str, *args: str, code: int = 2, **kwargs) -> str:
    """Runs a command that must fail, and returns its error, which is one line."""
    result = run(module, *args, **kwargs)
    assert result.returncode == code, result.stdout + result.stderr
    assert result.stderr.count("\n") == 1, result.stderr
    return result.stderr


def capture(*command, **options) -> subprocess.CompletedProcess:
    """Runs any program to its end, and returns it with what it has printed."""
    return subprocess.run(command, capture_output=True, text=True, **options)


def run_until(path: pathlib.Path, module: str, *args: str) -> None:
    """Starts a command, and kills it as soon as there is a directory."""
    process = start(module, *args)
    while not path.is_dir():
        assert process.poll() is None, process.communicate()
        time.sleep(0.005)
    process.kill()
    process.communicate()


def run_code(code: str, *args: str, **environment: str) -> subprocess.CompletedProcess:
    """Runs Python code in a new process."""
    command = [sys.executable, "-c", textwrap.dedent(code), *args]
    return capture(*command, env=ENV | environment, timeout=LIMIT_SECS)


def run_program(code: str) -> subprocess.CompletedProcess:
    """Runs Python code in a fork that has imported the libraries."""
    return run("tests.code", textwrap.dedent(code))


def flip(path: str | pathlib.Path, bit: int | None = None) -> None:
    """Flips one bit of a file: one in its middle, unless given."""
    path = pathlib.Path(path)
    content = bytearray(path.read_bytes())
    bit = len(content) // 2 * 8 if bit is None else bit
    content[bit // 8] ^= 1 << bit % 8
    path.write_bytes(content)


def write_text(path: pathlib.Path, num_documents: int = 60) -> None:
    """Writes documents of random sentences, one per line."""
    source = random.Random(0)
    nouns = "river stone garden letter captain winter engine window market song".split()
    verbs = "crosses follows remembers paints sells answers carries breaks".split()
    documents = []
    for _ in range(num_documents):
        own = source.sample(nouns, 4)  # a document has few subjects
        documents.append(
            "\n".join(
                f"The {source.choice(own)} {source.choice(verbs)} the"
                f" {source.choice(own)} near the old {source.choice(own)}."
                for _ in range(source.randint(2, 14))
            )
        )
    path.write_text("\n\n".join(documents) + "\n")


def small_run(directory: pathlib.Path, **changes) -> list[str]:
    """Returns arguments of a run that takes seconds, on the text in `directory`."""
    values = {
        "data.sources": f"('text:{directory}/*.txt',)",
        "data.corpus_dir": str(directory / "corpus"),
        "tokenizer.vocab_size": 120,
        "model.hidden_size": 32,
        "model.intermediate_size": 64,
        "model.max_position_embeddings": 32,
        "model.hidden_dropout_prob": 0.1,
        "model.attention_probs_dropout_prob": 0.1,
        "phases[0].num_steps": 60,
        "phases[0].sequence_length": 32,
        "phases[0].global_batch_size": 16,
        "phases[0].max_predictions": 5,
        "optimizer.warmup_steps": 6,
        "data.validation_fraction": 0.1,
        "checkpoint.every_steps": 30,
        "eval.every_steps": 30,
        "eval.num_sequences": 32,
        "log_every_steps": 10,
    } | changes
    return [ONE_PHASE] + [f"--config.{key}={value}" for key, value in values.items()]
