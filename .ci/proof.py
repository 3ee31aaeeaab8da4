"""Compares what this checkout computes with an earlier commit: every bit must be equal.

    python .ci/proof.py [--base=COMMIT]

Compares, on the same text and machine, batches of four configs at three steps and the
exported weights of a short run of configs/tiny.py with AdamW. A change that alters one
of them on purpose moves BASE, and says so in CHANGELOG.md.
"""

import argparse
import hashlib
import json
import os
import pathlib
import random
import subprocess
import sys
import tempfile

BASE = "9887508"
STEPS = (0, 1_000, 100_000)
ROOT = pathlib.Path(__file__).parent.parent


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--base", default=BASE)
    parser.add_argument("--print", metavar="DIR", help="print the digests of this tree")
    args = parser.parse_args()
    if args.print:
        print(json.dumps(digests(pathlib.Path(args.print)), indent=1))
        return
    git = ["git", "-C", str(ROOT)]
    if subprocess.run([*git, "cat-file", "-e", f"{args.base}^{{commit}}"]).returncode:
        is_shallow = [*git, "rev-parse", "--is-shallow-repository"]
        missing = f"proof: nothing was compared, because commit {args.base} is missing"
        if subprocess.check_output(is_shallow, text=True).strip() == "true":
            print(f"{missing} from this shallow clone")
            return
        sys.exit(f"{missing}; give another with --base")
    git.append("worktree")
    with tempfile.TemporaryDirectory() as scratch:
        tree = pathlib.Path(scratch, "base")
        subprocess.run([*git, "add", "-q", "--detach", tree, args.base], check=True)
        try:
            write_text(pathlib.Path(scratch))
            before, after = (read(each, scratch) for each in (tree, ROOT))
        finally:
            subprocess.run([*git, "remove", "--force", tree], check=True)
    differing = [name for name in before if before[name] != after.get(name)]
    for name in differing:
        print(f"{name}: {before[name]} at {args.base}, now {after.get(name)}")
    print(f"proof: {len(before)} digests compared, {len(differing)} differ")
    sys.exit(bool(differing))


def read(tree: pathlib.Path, scratch: str) -> dict[str, str]:
    """Returns the digests that this script prints with the package of a tree."""
    command = [sys.executable, __file__, f"--print={scratch}"]
    environment = os.environ | {"PYTHONPATH": str(tree), "JAX_PLATFORMS": "cpu"}
    done = subprocess.run(
        command, cwd=tree, env=environment, stdout=subprocess.PIPE, check=True
    )
    return json.loads(done.stdout[done.stdout.index(b"{") :])


def write_text(directory: pathlib.Path) -> None:
    """Writes documents of made-up words, the same in every call."""
    draw = random.Random(0)
    letters = "abcdefghijklmnopqrstuvwxyz"
    words = ["".join(draw.choices(letters, k=draw.randint(2, 8))) for _ in range(500)]
    with open(directory / "text.jsonl", "w") as file:
        for _ in range(400):
            sentences = (
                " ".join(draw.choices(words, k=draw.randint(4, 14))) + "."
                for _ in range(40)
            )
            file.write(json.dumps({"text": "\n".join(sentences)}) + "\n")


def digests(directory: pathlib.Path) -> dict[str, str]:
    """Returns the digest of everything that is compared, by name."""
    found = {}
    for name, stream in (
        ("tiny", False),
        ("base", False),
        ("large_packed", False),
        ("tiny", True),
    ):
        found |= batches(directory, name, stream)
    return found | {"exported weights": exported(directory)}


def batches(directory: pathlib.Path, name: str, stream: bool) -> dict[str, str]:
    """Returns the digests of the batches of a config."""
    import importlib

    from bert_jax.config import from_config_dict
    from bert_jax.data.batches import pipeline
    from bert_jax.data.corpus import build

    values = importlib.import_module(f"bert_jax.configs.{name}").get_config()
    values.data.sources = (f"jsonl:{directory}/text.jsonl#text",)
    values.data.corpus_dir = str(directory / f"{name}{stream}{os.getpid()}")
    values.data.num_shards, values.data.num_streams = 4, 2
    values.data.stream, values.data.validation_fraction = stream, 0.05
    values.tokenizer.vocab_file, values.tokenizer.vocab_size = "", 600
    if stream:  # a stream does not train a vocabulary of its own
        values.tokenizer.vocab_file = f"{directory}/tinyFalse{os.getpid()}/vocab.txt"
    config = from_config_dict(values)
    corpus = build.prepare(config)
    found = {}
    for phase_index in range(len(config.phases)):
        for step in STEPS:
            batch = next(
                pipeline.batches(
                    corpus,
                    config,
                    split="train",
                    seed=1,
                    phase_index=phase_index,
                    first_step=step,
                )
            )
            key = f"{name}{' streamed' * stream}, phase {phase_index}, step {step:,}"
            found[key] = digest(batch)
    return found


def exported(directory: pathlib.Path) -> str:
    """Returns the digest of the weights of a short, exported run of configs/tiny.py."""
    from safetensors.numpy import load_file

    run = directory / f"run{os.getpid()}"
    for command in (
        f"train --config=tiny --workdir={run} --config.phases[0].num_steps=60"
        " --config.phases[1].num_steps=40 --config.optimizer.warmup_steps=5"
        " --config.optimizer.name=adamw_bert --config.optimizer.learning_rate=2e-3"
        " --config.optimizer.beta1=0.9 --config.optimizer.weight_decay=0.01"
        f" --config.data.sources=('jsonl:{directory}/text.jsonl#text',)"
        f" --config.data.corpus_dir={run}-corpus --config.tokenizer.vocab_size=600",
        f"export --workdir={run} --output={run}-exported",
    ):
        name, *flags = command.split()
        command = [sys.executable, "-m", f"bert_jax.{name}", *flags]
        subprocess.run(command, stdout=sys.stderr, check=True)
    return digest(load_file(f"{run}-exported/model.safetensors"))


def digest(arrays: dict) -> str:
    """Returns a digest of names, dtypes, shapes and values."""
    sha256 = hashlib.sha256()
    for name, x in sorted(arrays.items()):
        sha256.update(f"{name} {x.dtype} {x.shape}".encode() + x.tobytes())
    return sha256.hexdigest()[:16]


if __name__ == "__main__":
    main()
