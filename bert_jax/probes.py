"""Scores the model of a run on small tasks, without training it: `config.eval.probes`.

blimp:DIR   Accuracy (%) on BLiMP: which of two minimally different sentences is more
            likely? A pair is correct if the acceptable sentence has the higher
            pseudo-log-likelihood. DIR has one JSON lines file per paradigm, with the
            keys sentence_good and sentence_bad, and optionally linguistics_term.
stsb:DIR    Spearman correlation (%) of cosines with the labels of STS-B's dev set: do
            embeddings of similar sentences have similar directions? An embedding is the
            mean of the last layer's states over the tokens of a sentence, [CLS] and
            [SEP] included; nothing is trained. DIR has the dev.tsv of GLUE's STS-B.

Sources: Warstadt et al. 2020, BLiMP; Salazar et al. 2020, section 4.1, for its scores;
Cer et al. 2017, STS-B; Reimers and Gurevych 2019, section 4.1.

Shapes: N pair.
"""

import dataclasses
import hashlib
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
from flax import nnx

from bert_jax import storage
from bert_jax.config import ExperimentConfig
from bert_jax.data.tokenizers.tokenizers import Tokenizer
from bert_jax.distributed import multihost
from bert_jax.errors import ConfigError
from bert_jax.finetuning import metrics, tables
from bert_jax.finetuning.batches import Batching, Predictor
from bert_jax.finetuning.tasks import similarity
from bert_jax.finetuning.tasks.base import Texts
from bert_jax.finetuning.tasks.similarity import Similarity
from bert_jax.inference.masked_lm import Scorer
from bert_jax.model import heads, parameters
from bert_jax.model.heads import Head
from bert_jax.monitoring.writer import PROBE
from bert_jax.training import step as step_lib

# Rows of a step, at most: larger batches of short rows are no faster.
MAX_ROWS = 256
# Pairs of each paradigm that a probe scores. The 670 pairs of all paradigms have a
# standard error of at most 1.9%.
PROBED_PAIRS = 10
STSB_FILE = "dev.tsv"
TEXT, LABEL, MAX_LABEL = ("sentence1", "sentence2"), "score", 5.0
COSINES = Head(Similarity.head, (), 0.0)  # no parameters of its own

Examples = dict[str, Any]  # by kind
Probe = Callable[[Any], float]  # maps parameters to a result in percent


@dataclasses.dataclass(frozen=True)
class Target:
    """The model of a pretraining run, which probes score."""

    config: ExperimentConfig
    tokenizer: Tokenizer
    graphdef: nnx.GraphDef  # structure of its `BertForPreTraining`
    mesh: jax.sharding.Mesh  # that of its parameters

    @property
    def max_length(self) -> int:
        """Maximum tokens of a row."""
        return self.config.model.max_position_embeddings

    @property
    def batch_size(self) -> int:
        """Rows of a step, with at most the tokens of a microbatch of training."""
        tokens = min(
            phase.global_batch_size * phase.sequence_length
            for phase in self.config.phases
        )
        size = tokens // self.config.accumulation_steps // self.max_length
        return max(min(size, MAX_ROWS), 1)

    def batching(self, batch_size: int) -> Batching:
        """Returns how a `Scorer` or a `Predictor` computes rows."""
        dtype = step_lib.compute_dtype(self.config.compute_dtype)
        return Batching(self.max_length, batch_size, dtype, self.mesh)


def read(specs: Sequence[str], given_as: str = "config.eval.probes") -> Examples:
    """Reads the examples of probes KIND:DIR, at most one of each of KINDS."""
    examples: Examples = {}
    for spec in specs:
        kind, _, directory = spec.partition(":")
        where = f"{given_as} has {spec!r}"
        if kind not in KINDS or not directory:
            known = " or ".join(f"{name}:DIR" for name in KINDS)
            raise ConfigError(f"{where}; a probe must be {known}")
        if kind in examples:
            raise ConfigError(f"{where}, a second {kind} probe; remove one of the two")
        read_examples, _ = KINDS[kind]
        path = Path(storage.parse_path(given_as, directory))
        examples[kind] = read_examples(path, where)
    if examples:
        plain = {kind: dataclasses.asdict(x) for kind, x in examples.items()}
        text = json.dumps(plain, default=lambda array: array.tolist())
        multihost.check_same(
            "probes",
            hashlib.sha256(text.encode()).hexdigest(),
            f"{given_as}={tuple(specs)!r} has different data on some hosts; copy the"
            " same files to all of them",
        )
    return examples


def prepare(examples: Examples, target: Target) -> Callable[[Any], dict[str, float]]:
    """Returns parameters -> the results of probes as probe/KIND, in all processes."""
    probes = {PROBE + kind: KINDS[kind][1](x, target) for kind, x in examples.items()}
    return lambda params: {name: probe(params) for name, probe in probes.items()}


@dataclasses.dataclass(frozen=True)
class Pairs:
    """N minimal pairs of BLiMP."""

    good: list[str]  # acceptable sentences
    bad: list[str]
    terms: list[str]  # linguistic terms; the name of its file if a pair has none


def read_blimp(
    directory: Path, given_as: str, limit: int | None = PROBED_PAIRS
) -> Pairs:
    """Reads the pairs of all paradigms, in the order of their files.

    Args:
      limit: maximum number of pairs of a paradigm, evenly spaced in its file; None for
        all.
    """
    paths = sorted(directory.glob("*.jsonl"))
    if not paths:
        raise ConfigError(
            f"{given_as}: {directory} has no .jsonl files; give the directory of"
            " BLiMP's data, a file for each paradigm"
        )
    found = Pairs([], [], [])
    for path in paths:
        table = tables.read(f"jsonl:{path}")
        good, bad = (table.column(f"sentence_{x}") for x in ("good", "bad"))
        terms = table.columns.get("linguistics_term", [path.stem] * len(good))
        count = len(good) if limit is None else min(limit, len(good))
        for row in (i * len(good) // count for i in range(count)):
            for sentence in (good[row], bad[row]):
                if not isinstance(sentence, str):
                    raise ConfigError(
                        f"{path} has {sentence!r} as a sentence; it must be a string"
                    )
            found.good.append(good[row])
            found.bad.append(bad[row])
            found.terms.append(str(terms[row]))
    return found


def margins(pairs: Pairs, score: Callable[[list[str]], np.ndarray]) -> np.ndarray:
    """Returns float[N], by how much the acceptable sentence of each pair is likelier.

    It is 0 for a tie, which BabyLM counts as correct.
    """
    good_N, bad_N = np.split(score([*pairs.good, *pairs.bad]), 2)
    return good_N - bad_N


def _blimp(pairs: Pairs, target: Target) -> Probe:
    batching = target.batching(target.batch_size)
    scorer = Scorer(target.graphdef, target.tokenizer, batching)

    def accuracy(params: Any) -> float:
        margins_N = margins(pairs, lambda texts: scorer(params, texts).values)
        return 100.0 * float((margins_N > 0).mean())

    return accuracy


def read_stsb(directory: Path, given_as: str) -> Texts:
    """Reads the labelled pairs of STS-B."""
    path = directory / STSB_FILE
    if not path.is_file():
        raise ConfigError(
            f"{given_as}: {directory} has no {STSB_FILE}; give the directory of GLUE's"
            " STS-B"
        )
    table = tables.read(f"tsv:{path}")
    for column in (*TEXT, LABEL):
        table.column(column)  # raises the error for a table with other columns
    return similarity.read_pairs(
        table, TEXT, LABEL, MAX_LABEL, f"the highest score of {given_as}"
    )


def _stsb(texts: Texts, target: Target) -> Probe:
    assert texts.labels is not None, "read_stsb reads the labels"
    labels_N, config = texts.labels, target.config
    graphdef, abstract = parameters.structure(
        lambda key: heads.build(config.model, config.tokenizer.vocab_size, COSINES, key)
    )
    features = similarity.separate_rows(texts, target.tokenizer, target.max_length)
    size = max(target.batch_size // 2, 1)  # a pair has two rows
    predictor = Predictor(graphdef, target.batching(size))

    def correlation(params: Any) -> float:
        by_name = parameters.leaves(params)
        encoder = jax.tree_util.tree_map_with_path(
            lambda path, _: by_name[parameters.path_name(path)], abstract
        )
        cosines_N = predictor(encoder, features)
        return 100.0 * metrics.regression(cosines_N, labels_N)["spearman"]

    return correlation


# Kind -> its reader of examples, and the maker of its probe.
KINDS: dict[str, tuple[Callable[..., Any], Callable[..., Probe]]] = {
    "blimp": (read_blimp, _blimp),
    "stsb": (read_stsb, _stsb),
}
