"""STS-B: do embeddings of similar sentences have similar directions?

An embedding is the mean of the last layer's states over the tokens of a sentence, [CLS]
and [SEP] included; nothing is trained. The result is the Spearman correlation of
cosines and labels over the dev set. The directory has the dev.tsv of GLUE's STS-B.

Source: Cer et al. 2017; Reimers and Gurevych 2019, section 4.1.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax

from bert_jax.errors import ConfigError
from bert_jax.finetuning import metrics
from bert_jax.finetuning.data import tables
from bert_jax.finetuning.data.examples import Texts
from bert_jax.finetuning.predictor import Predictor
from bert_jax.finetuning.tasks import similarity
from bert_jax.finetuning.tasks.similarity import Similarity
from bert_jax.model import heads, parameters
from bert_jax.model.heads import Head
from bert_jax.probes.target import Target

FILE = "dev.tsv"
TEXT, LABEL, MAX_LABEL = ("sentence1", "sentence2"), "score", 5.0
HEAD = Head(Similarity.head, (), 0.0)  # no parameters of its own


def read_probe(directory: Path, given_as: str) -> Texts:
    """Reads the labelled pairs."""
    path = directory / FILE
    if not path.is_file():
        raise ConfigError(
            f"{given_as}: {directory} has no {FILE}; give the directory of GLUE's STS-B"
        )
    table = tables.read(f"tsv:{path}")
    for column in (*TEXT, LABEL):
        table.column(column)  # raises the error for a table with other columns
    return similarity.read_pairs(
        table, TEXT, LABEL, MAX_LABEL, f"the highest score of {given_as}"
    )


def make_probe(texts: Texts, target: Target) -> Callable[[Any], float]:
    """Returns a function that maps parameters to the correlation in percent."""
    assert texts.labels is not None, "read_probe reads the labels"
    labels_N, config = texts.labels, target.config
    graphdef, abstract = parameters.structure(
        lambda key: heads.build(config.model, config.tokenizer.vocab_size, HEAD, key)
    )
    features = similarity.separate_rows(texts, target.tokenizer, target.max_length)
    predictor = Predictor(
        graphdef,
        length=target.max_length,
        batch_size=max(target.batch_size // 2, 1),  # a pair has two rows
        dtype=target.dtype,
        mesh=target.mesh,
    )

    def correlation(params: Any) -> float:
        cosines_N = predictor(_encoder_of(params, abstract), features)
        return 100.0 * metrics.regression(cosines_N, labels_N)["spearman"]

    return correlation


def _encoder_of(params: Any, like: Any) -> Any:
    """Returns the parameters of a model that those of an encoder are named after."""
    leaves, _ = jax.tree_util.tree_flatten_with_path(params)
    by_name = {parameters.path_name(path): leaf for path, leaf in leaves}
    wanted, structure = jax.tree_util.tree_flatten_with_path(like)
    chosen = [by_name[parameters.path_name(path)] for path, _ in wanted]
    return jax.tree.unflatten(structure, chosen)
