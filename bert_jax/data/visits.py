"""Draws the rows that one visit to a shard gives: pairs, packed, in random order.

Shapes: R row of a visit, K sentence pair in a row, N pair of a pass.
"""

import dataclasses

import numpy as np

from bert_jax.config import ExperimentConfig, PhaseConfig
from bert_jax.data import packing, pairs, tokenizers
from bert_jax.data.corpus import Corpus, Shard

# First integer of a key: the purpose of the draw.
PAIRS, SHUFFLE, ORDER, ROWS = range(4)


@dataclasses.dataclass(frozen=True)
class Visit:
    """The rows of one visit to a shard.

    Attributes:
      epoch: of the stream.
      shard: the file's name.
      tokens: uint16 or uint32, the special tokens of a row and then the shard's as
        `Corpus.load_marked` gives them.
      pairs_RK5: int32, of each pair A start, A length, B start, B length, is_random;
        A starts count `tokens`; all 0 where there is no pair.
      keys_R2: uint32, of the rows' masks.
      document_starts: int64, the first token of each document, in `tokens`.
    """

    epoch: int
    shard: str
    tokens: np.ndarray
    pairs_RK5: np.ndarray
    keys_R2: np.ndarray
    document_starts: np.ndarray


def draw(
    corpus: Corpus,
    config: ExperimentConfig,
    phase: PhaseConfig,
    shard: Shard,
    num_rows: int,
    key: tuple[int, ...],
    epoch: int,
) -> Visit:
    """Draws a visit's pairs, packs them into rows and shuffles the rows.

    Args:
      corpus: that the shard belongs to.
      config: of the run.
      phase: of the config; gives the row's length and the pairs in a row.
      shard: to visit.
      num_rows: R.
      key: of the draws; no other shard, epoch, phase or split has the same.
      epoch: of the stream.
    """
    tokens, documents = corpus.load_marked(shard)
    tokenizer = corpus.tokenizer
    special = [tokenizer.id(tokenizers.CLS), tokenizer.id(tokenizers.SEP)]
    special += [tokenizer.id(tokenizers.PAD)] * phase.sequence_length
    tokens = np.concatenate([np.array(special, tokens.dtype), tokens])
    draw_pass = pairs.draw_pairs if config.data.next_sentence else pairs.draw_segments

    random = pairs.CounterRandom(PAIRS, *key)
    drawn = draw_pass(
        documents, phase.sequence_length, config.data.short_seq_prob, random
    )
    rows = _pack(drawn, phase, len(special), random)
    # Where the pass gave fewer rows than a visit, some are taken twice, the second time
    # under other masks: drawing a second pass for them would double the work.
    random = pairs.CounterRandom(SHUFFLE, *key)
    order = np.argsort(random.words(len(rows)), kind="stable")
    chosen = np.resize(order, num_rows)
    chosen = chosen[np.argsort(random.words(num_rows), kind="stable")]
    keys = pairs.CounterRandom(ROWS, *key).words(num_rows)
    first_tokens = documents.token_offsets[documents.sentence_offsets[:-1]]
    return Visit(
        epoch=epoch,
        shard=shard.file,
        tokens=tokens,
        pairs_RK5=rows[chosen],
        keys_R2=keys.view(np.uint32).reshape(-1, 2),
        document_starts=first_tokens + len(special),
    )


def _pack(
    drawn: pairs.Pairs,
    phase: PhaseConfig,
    num_special: int,
    random: pairs.CounterRandom,
) -> np.ndarray:
    """Returns a pass's rows as int32[R, K, 5], see `Visit`."""
    columns = [
        drawn.a_start + num_special,
        drawn.a_length,
        drawn.b_start + num_special,
        drawn.b_length,
        drawn.is_random,
    ]
    pairs_N5 = np.stack(columns, axis=1).astype(np.int32)
    K = phase.max_sequences_per_row
    if K == 1:
        return pairs_N5[:, None]
    # Which of the pairs of one length go together is drawn anew each time.
    pairs_N5 = pairs_N5[np.argsort(random.words(len(drawn)), kind="stable")]
    lengths_N = pairs_N5[:, 1] + pairs_N5[:, 3] + 2 + (pairs_N5[:, 3] > 0)
    index_RK = packing.pack(lengths_N, phase.sequence_length, K)
    return np.where(index_RK[:, :, None] >= 0, pairs_N5[index_RK], 0)
