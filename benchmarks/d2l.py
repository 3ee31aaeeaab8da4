"""Pretrains as in "Dive into Deep Learning", chapter 15, compared with its own setting.

    python -m benchmarks.d2l --data=FILE [--seeds=0] [--steps=50] [--batch=512]
        [--repeats=5] [--workdir=DIR]

FILE is a text of WikiText-2, for example wiki.train.tokens. Our side is `train` with
configs/d2l.py, the book's side the PyTorch loop of d2l_torch.py. Both read the same
paragraphs with the same vocabulary: the words of BERT's tokenizer that occur at least 5
times. Prints a row for each of: masked-LM loss per masked word and next-sentence loss
and accuracy, which are means over all steps, and pairs/s of the training step on one
batch, timed in alternation, without the input pipeline. Losses do not depend on the
load of the machine, and rates do: --repeats=0 trains without timing, and --seeds= times
without training.
"""

import argparse
import collections
import json
import math
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path

import tokenizers as tokenizers_lib

from benchmarks import d2l_torch, rows, train_step
from bert_jax import config as config_lib
from bert_jax.configs import d2l
from bert_jax.data.tokenizers import wordpiece
from bert_jax.data.tokenizers.base import SPECIAL_TOKENS

MIN_COUNT = 5
# A word that is not in the vocabulary, and that BERT's tokenizer does not split.
UNKNOWN = "\u2047"
ESCAPES = {" @-@ ": "-", " @,@ ": ",", " @.@ ": ".", "<unk>": UNKNOWN}
LENGTH = 64
UNITS = {
    "masked_lm_loss": "nats per masked word",
    "next_sentence_loss": "nats per pair",
    "next_sentence_accuracy": "accuracy",
}
PEER = "the book's model, loss and pairs in PyTorch"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--seeds", default="0")
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--batch", type=int, default=512)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--workdir", type=Path)
    args = parser.parse_args()
    found = list(paragraphs(args.data))
    counts = count_words(found)
    tokenizer = wordpiece.WordPiece(vocabulary(counts), lowercase=True)
    with tempfile.TemporaryDirectory() as scratch:
        if args.seeds:
            compare(args, args.workdir or Path(scratch), found, counts, tokenizer)
    if args.repeats:
        time_steps(len(tokenizer.vocab), args)


def compare(
    args: argparse.Namespace,
    workdir: Path,
    found: list[list[str]],
    counts: collections.Counter[str],
    tokenizer: wordpiece.WordPiece,
) -> None:
    """Runs both sides with every seed and prints the rows."""
    write(workdir, found, tokenizer)
    ours: list[dict[str, float]] = []
    theirs: list[dict[str, float]] = []
    for seed in map(int, args.seeds.split(",")):
        ours.append(train(workdir, tokenizer, seed, args))
        encoded = map(tokenizer.encoder(), found)
        peer = d2l_torch.train(encoded, tokenizer, LENGTH, seed, args.batch, args.steps)
        theirs.append(peer)
    case = f"{args.data.name}, {len(tokenizer.vocab):,} words, {args.steps} steps"
    for name, unit in UNITS.items():
        more = {
            side: round(statistics.median(run[f"last_{name}"] for run in runs), 3)
            for side, runs in (("last_steps", ours), ("peer_last_steps", theirs))
        }
        if name == "masked_lm_loss":
            with_padding = [run["loss_with_padding"] for run in theirs]
            more["peer_loss_with_padding"] = round(statistics.median(with_padding), 3)
            more["unigram_entropy"] = round(entropy(counts, tokenizer), 3)
        values = [[run[name] for run in side] for side in (ours, theirs)]
        title = name.replace("_", " ").replace("lm", "LM")
        rows.print_row(
            "d2l", f"{title}, {case}", unit, values[0], PEER, values[1], **more
        )


def time_steps(vocab_size: int, args: argparse.Namespace) -> None:
    """Times the training steps of both sides in alternation and prints the row."""
    config = d2l.get_config()
    config.tokenizer.vocab_size = vocab_size
    config.phases[0].global_batch_size = args.batch
    config = config_lib.from_config_dict(config)
    builders = {"ours": train_step.our_step, "theirs": d2l_torch.make_step}
    arguments = (config, train_step.make_batch(config))
    seconds = rows.alternate(builders, arguments, args.repeats)
    rates = {name: [args.batch / s for s in each] for name, each in seconds.items()}
    case = f"training step, {args.batch} x {LENGTH}, {vocab_size:,} words"
    rows.print_row("d2l", case, "pairs/s", rates["ours"], PEER, rates["theirs"])


def paragraphs(path: Path) -> Iterator[list[str]]:
    """Yields the sentences of each paragraph that has several, as the book splits them.

    The escapes of WikiText-2 are undone.
    """
    for line in path.read_text(encoding="utf-8").splitlines():
        for escape, by in ESCAPES.items():
            line = line.replace(escape, by)
        sentences = line.strip().split(" . ")
        if len(sentences) > 1:
            yield sentences


def count_words(found: Iterable[list[str]]) -> collections.Counter[str]:
    """Returns the number of occurrences of each word of BERT's tokenizer."""
    tokenizer = tokenizers_lib.Tokenizer(tokenizers_lib.models.WordPiece())
    wordpiece.set_text_rules(tokenizer, lowercase=True)
    normalize = tokenizer.normalizer.normalize_str
    split = tokenizer.pre_tokenizer.pre_tokenize_str
    return collections.Counter(
        word
        for sentences in found
        for sentence in sentences
        for word, _ in split(normalize(sentence))
    )


def vocabulary(counts: collections.Counter[str]) -> tuple[str, ...]:
    words = [
        word
        for word, count in counts.most_common()
        if count >= MIN_COUNT and word != UNKNOWN and not word.startswith("##")
    ]
    return (*SPECIAL_TOKENS, *words)


def entropy(counts: collections.Counter[str], tokenizer: wordpiece.WordPiece) -> float:
    """Returns the entropy in nats of a word, given the frequencies of all words."""
    known = [counts[word] for word in tokenizer.vocab if counts[word]]
    total = counts.total()
    frequencies = [n / total for n in (*known, total - sum(known)) if n]
    return -sum(p * math.log(p) for p in frequencies)


def write(
    workdir: Path, found: list[list[str]], tokenizer: wordpiece.WordPiece
) -> None:
    """Writes the text, a sentence per line, and the vocabulary."""
    workdir.mkdir(parents=True, exist_ok=True)
    text = "\n\n".join("\n".join(sentences) for sentences in found)
    (workdir / "text.txt").write_text(text + "\n", encoding="utf-8")
    tokenizer.save(workdir)


def train(
    workdir: Path,
    tokenizer: wordpiece.WordPiece,
    seed: int,
    args: argparse.Namespace,
) -> dict[str, float]:
    """Runs configs/d2l.py and returns its metrics."""
    run = workdir / f"seed{seed}"
    command = [
        *(sys.executable, "-m", "bert_jax.train", "--config=configs/d2l.py"),
        f"--workdir={run}",
        f"--config.seed={seed}",
        f"--config.data.sources=('text:{workdir / 'text.txt'}',)",
        f"--config.data.corpus_dir={workdir / 'corpus'}",
        f"--config.tokenizer.vocab_file={workdir / tokenizer.FILE}",
        f"--config.tokenizer.vocab_size={len(tokenizer.vocab)}",
        f"--config.phases[0].num_steps={args.steps}",
        f"--config.phases[0].global_batch_size={args.batch}",
    ]
    subprocess.run(command, check=True, stdout=sys.stderr)
    lines = [json.loads(line) for line in (run / "metrics.jsonl").open()]
    lines = [line for line in lines if "masked_lm_loss" in line]
    means = {name: statistics.mean(line[name] for line in lines) for name in UNITS}
    return means | {f"last_{name}": lines[-1][name] for name in UNITS}


if __name__ == "__main__":
    main()
