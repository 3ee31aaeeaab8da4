"""Runs commands, `python -m bert_jax.X`, in processes of their own."""

import os
import pathlib
import random
import subprocess
import sys

ROOT = pathlib.Path(__file__).parent.parent

# One simulated device, unless a test asks for more.
ENV = {
    **os.environ,
    "JAX_PLATFORMS": "cpu",
    "XLA_FLAGS": "--xla_force_host_platform_device_count=1",
}
PATH = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]).strip(os.pathsep)


def start(
    module: str, *args: str, devices: int = 1, cwd=ROOT, **environment: str
) -> subprocess.Popen:
    flags = f"--xla_force_host_platform_device_count={devices}"
    return subprocess.Popen(
        [sys.executable, "-m", module, *args],
        cwd=cwd,
        env=ENV | {"XLA_FLAGS": flags, "PYTHONPATH": PATH} | environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def run(module: str, *args: str, **kwargs) -> subprocess.CompletedProcess:
    process = start(module, *args, **kwargs)
    stdout, stderr = process.communicate(timeout=1500)
    return subprocess.CompletedProcess(args, process.returncode, stdout, stderr)


def run_well(module: str, *args: str, **kwargs) -> str:
    """Runs a command that must succeed and returns its standard output."""
    result = run(module, *args, **kwargs)
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


def run_code(code: str) -> subprocess.CompletedProcess:
    """Runs Python code in a new process."""
    return subprocess.run(
        [sys.executable, "-c", code],
        cwd=ROOT,
        env=ENV,
        capture_output=True,
        text=True,
        timeout=300,
    )


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
    return ["--config=tests/one_phase.py"] + [
        f"--config.{key}={value}" for key, value in values.items()
    ]
