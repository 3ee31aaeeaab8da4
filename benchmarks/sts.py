"""Evaluates sentence embeddings on STS-B, compared with sentence-transformers.

    python -m benchmarks.sts --data=FILE [--model=DIR] [--batch=32]

FILE is a table with tabs and the columns sentence1, sentence2 and score, for example
STS-B/dev.tsv of GLUE. Prints a row with the rank correlation (Spearman) of cosine and
score, in points, of `bert_jax.inference` with mean pooling and of sentence-transformers
with the same model and maximum length; and the linear correlation (Pearson) of both.
The default model is all-MiniLM-L6-v2, see minilm.py.
"""

import argparse
import csv
import tempfile
from pathlib import Path

import numpy as np
from scipy import stats

from benchmarks import minilm, rows
from bert_jax import inference


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--model", type=Path)
    parser.add_argument("--batch", type=int, default=32)
    args = parser.parse_args()
    pairs, scores = read(args.data)
    texts = [text for pair in pairs for text in pair]
    with tempfile.TemporaryDirectory() as scratch:
        model = args.model or minilm.unpack(Path(scratch))
        ours, length = our_vectors(model, texts, args.batch)
        theirs = their_vectors(model, texts, args.batch, length)
    spearman, pearson = correlations(ours, scores)
    peer_spearman, peer_pearson = correlations(theirs, scores)
    rows.print_row(
        "sts",
        f"{args.model.name if args.model else 'all-MiniLM-L6-v2'},"
        f" {args.data.stem} ({len(pairs):,} pairs)",
        "Spearman, points",
        [spearman],
        "sentence-transformers",
        [peer_spearman],
        pearson=round(pearson, 3),
        peer_pearson=round(peer_pearson, 3),
        largest_difference=float(f"{np.abs(ours - theirs).max():.3g}"),
        max_length=length,
    )


def read(path: Path) -> tuple[list[tuple[str, str]], np.ndarray]:
    """Returns the pairs of texts and their scores."""
    with path.open(encoding="utf-8", newline="") as file:
        table = csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE)
        found = [row for row in table if row.get("score")]
    pairs = [(row["sentence1"], row["sentence2"]) for row in found]
    return pairs, np.array([float(row["score"]) for row in found])


def our_vectors(model: Path, texts: list[str], batch: int) -> tuple[np.ndarray, int]:
    """Returns the mean of each text's token vectors, of length 1, and the maximum
    number of tokens."""
    encoder = inference.load(model, batch_size=batch)
    vectors = encoder.features(texts, pooling="mean")
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True), encoder.max_length


def their_vectors(
    model: Path, texts: list[str], batch: int, max_length: int
) -> np.ndarray:
    """Returns the vectors of sentence-transformers, of length 1."""
    import sentence_transformers

    encoder = sentence_transformers.SentenceTransformer(str(model), device="cpu")
    encoder.max_seq_length = max_length
    return encoder.encode(texts, batch_size=batch, normalize_embeddings=True)


def correlations(vectors: np.ndarray, scores: np.ndarray) -> tuple[float, float]:
    """Returns the rank and the linear correlation with the scores, in points.

    Args:
      vectors: float32[2 * N, F], of length 1; those of a pair follow each other.
      scores: float64[N].
    """
    cosines = (vectors[::2] * vectors[1::2]).sum(axis=1, dtype=np.float64)
    spearman = stats.spearmanr(cosines, scores).statistic
    return 100 * float(spearman), 100 * float(np.corrcoef(cosines, scores)[0, 1])


if __name__ == "__main__":
    main()
