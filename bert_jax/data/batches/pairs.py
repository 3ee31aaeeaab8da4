"""Draws the sentence pairs of one pass over a shard, and packs them into rows.

The released generator walks through each document: it takes a chunk of sentences that
reaches a target length, splits it into A and B, and continues after the sentences that
it used. Here the draw is made for every sentence as if a chunk started there. Following
the starts of the next chunks from the first sentence of each document then gives the
chunks that the walk visits. The result is that of the walk, without a Python step per
pair. There is one deliberate difference: long documents draw several target lengths,
see `_targets`.

Source: google-research/bert create_pretraining_data.py,
create_instances_from_document and truncate_seq_pair.
Shapes: S sentence, D document, G range of tokens, W walk, N pair or any number of
draws, R row, K pair of a row.
"""

import collections
import dataclasses

import numpy as np

# The maximum number of draws to find a document other than that of A (:280).
MAX_TRIES = 10
# A document longer than this many full rows draws a target length for each part of that
# size. Smaller parts would change the mean, because chunks extend into the next part.
PART_ROWS = 16


@dataclasses.dataclass(frozen=True)
class Documents:
    """The boundaries of the sentences and documents of a shard."""

    token_offsets: np.ndarray  # int64[sentences + 1], first token of each sentence
    sentence_offsets: np.ndarray  # int64[documents + 1], first sentence of each

    @classmethod
    def from_lengths(
        cls, sentence_lengths_S: np.ndarray, document_lengths_D: np.ndarray
    ) -> "Documents":
        """Takes tokens per sentence and sentences per document, all at least 1."""
        return cls(offsets(sentence_lengths_S), offsets(document_lengths_D))

    def slice(self, start: int, stop: int) -> "Documents":
        """Returns documents start to stop - 1, with token offsets in the shard."""
        ends = self.sentence_offsets[start : stop + 1]
        return Documents(self.token_offsets[ends[0] : ends[-1] + 1], ends - ends[0])


@dataclasses.dataclass(frozen=True)
class Pairs:
    """Segments A and B as slices of the tokens of a shard; all int64[num_pairs]."""

    a_start: np.ndarray  # first token of A
    a_length: np.ndarray  # number of tokens of A
    b_start: np.ndarray
    b_length: np.ndarray  # 0 without the next-sentence objective
    is_random: np.ndarray  # bool, True if B does not follow A; label 1 in BERT

    @property
    def lengths(self) -> np.ndarray:
        """int64[num_pairs], number of tokens including [CLS] and [SEP]."""
        return self.a_length + self.b_length + 2 + (self.b_length > 0)

    def as_columns(self) -> np.ndarray:
        """Returns int32[num_pairs, 5], the five arrays as columns."""
        return np.stack(list(vars(self).values()), axis=1).astype(np.int32)


class CounterRandom:
    """Random numbers from Philox, identical on all NumPy versions and machines.

    NumPy guarantees that the stream of a bit generator does not change, but not the
    methods of `Generator`.
    """

    def __init__(self, *key: int):
        self._words = np.random.Philox(np.random.SeedSequence(key))

    def words(self, size: int) -> np.ndarray:
        return self._words.random_raw(size)

    def uniform(self, size: int) -> np.ndarray:
        """Returns float64[size] in [0, 1), multiples of 2**-53."""
        return (self.words(size) >> np.uint64(11)) * 2.0**-53

    def below(self, bound_N: np.ndarray) -> np.ndarray:
        """Returns int64[N], uniform in [0, bound)."""
        return (self.uniform(len(bound_N)) * bound_N).astype(np.int64)

    def order(self, size: int) -> np.ndarray:
        """Returns int64[size], a random permutation."""
        return np.argsort(self.words(size), kind="stable")

    def spread(self, size: int) -> np.ndarray:
        """Returns float64[size], each uniform in [0, 1), together evenly spaced.

        The numbers are a Weyl sequence: a random start, then steps of the golden ratio.
        """
        steps = np.arange(size, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
        return ((self.words(1) + steps) >> np.uint64(11)) * 2.0**-53

    def heads(self, tosses_N: np.ndarray) -> np.ndarray:
        """Returns int64[N], the number of heads in each."""
        heads = np.zeros(len(tosses_N), np.int64)
        remaining = tosses_N.copy()
        open_ = np.flatnonzero(remaining > 0)
        while len(open_):
            count = np.minimum(remaining[open_], 63).astype(np.uint64)
            mask = (np.uint64(1) << count) - np.uint64(1)
            heads[open_] += np.bitwise_count(self.words(len(open_)) & mask)
            remaining[open_] -= 63
            open_ = open_[remaining[open_] > 0]
        return heads


def draw_pairs(
    documents: Documents,
    sequence_length: int,
    short_seq_prob: float,
    random: CounterRandom,
) -> Pairs:
    """Draws the pairs of one pass, in document order.

    short_seq_prob is the share of documents, or of parts of long documents, whose
    target is a random shorter length.
    """
    max_num_tokens = sequence_length - 3
    tokens, sentences = documents.token_offsets, documents.sentence_offsets
    num_documents, num_sentences = len(sentences) - 1, len(tokens) - 1

    target = _targets(documents, max_num_tokens, short_seq_prob, random)

    # The chunk that would start at each sentence. It ends where it reaches the target
    # or at the end of its document.
    document = np.repeat(np.arange(num_documents), np.diff(sentences))
    start = np.arange(num_sentences)
    end = np.searchsorted(tokens, tokens[:-1] + target, side="left")
    end = np.minimum(end, sentences[document + 1])
    num_in_chunk = end - start
    a_sentences = 1 + random.below(np.maximum(num_in_chunk - 1, 1))
    is_random = (random.uniform(num_sentences) < 0.5) | (num_in_chunk == 1)
    # Sentences replaced by a random B are used again (:292).
    following = np.where(is_random, start + a_sentences, end)
    following[following == sentences[document + 1]] = num_sentences

    chunk = walk(sentences[:-1], following)
    a_start = tokens[chunk]
    b_first = chunk + a_sentences[chunk]
    a_length = tokens[b_first] - a_start
    b_end = end[chunk].copy()

    # A random B starts at a random sentence of another document and ends at the target.
    is_random = is_random[chunk]
    randoms = np.flatnonzero(is_random)
    other = _other_documents(document[chunk[randoms]], num_documents, random)
    first = sentences[other] + random.below(np.diff(sentences)[other])
    wanted = np.maximum(target[chunk[randoms]] - a_length[randoms], 1)
    last = np.searchsorted(tokens, tokens[first] + wanted, side="left")
    b_first[randoms] = first
    b_end[randoms] = np.minimum(last, sentences[other + 1])

    b_start = tokens[b_first]
    b_length = tokens[b_end] - b_start
    return _truncate(
        Pairs(a_start, a_length, b_start, b_length, is_random), max_num_tokens, random
    )


def draw_segments(
    documents: Documents,
    sequence_length: int,
    short_seq_prob: float,
    random: CounterRandom,
) -> Pairs:
    """Draws the segments of one pass, without the next-sentence objective.

    A segment A contains as many whole sentences of one document as fit, at least one;
    the next segment starts where it ends. A sentence longer than a row is continued in
    the next segment, so no token is dropped. A row has only one [SEP].
    """
    max_num_tokens = sequence_length - 2
    tokens, first_part = _cut(documents.token_offsets, max_num_tokens)
    sentences = first_part[documents.sentence_offsets]
    documents = Documents(tokens, sentences)
    num_documents, num_sentences = len(sentences) - 1, len(tokens) - 1
    target = _targets(documents, max_num_tokens, short_seq_prob, random)
    document = np.repeat(np.arange(num_documents), np.diff(sentences))
    end = np.searchsorted(tokens, tokens[:-1] + target, side="right") - 1
    end = np.maximum(end, np.arange(num_sentences) + 1)
    end = np.minimum(end, sentences[document + 1])
    following = np.where(end == sentences[document + 1], num_sentences, end)
    chunk = walk(sentences[:-1], following)
    start = tokens[chunk]
    nothing = np.zeros_like(start)
    return Pairs(
        start, tokens[end[chunk]] - start, nothing, nothing, np.zeros(len(chunk), bool)
    )


def _targets(
    documents: Documents,
    max_num_tokens: int,
    short_seq_prob: float,
    random: CounterRandom,
) -> np.ndarray:
    """Draws the target length of the chunk that may start at each sentence, int64[S].

    The released generator draws one target per document and pass, not per pair (:239).
    Here the same holds for documents of up to PART_ROWS rows. A longer document draws
    one target per part of that size, because a book with a target of a few tokens would
    give up to 20 times as many pairs as in other passes. Each target has the
    distribution of the released generator, so the mean over passes is the same. The
    targets of parts of similar size are not drawn independently, but evenly spaced over
    that distribution.
    """
    part_starts, _ = _cut(
        documents.token_offsets[documents.sentence_offsets], PART_ROWS * max_num_tokens
    )
    sizes = np.diff(part_starts)
    order = np.lexsort((random.words(len(sizes)), np.frexp(sizes)[1]))
    uniform = np.empty(len(sizes))
    uniform[order] = random.spread(len(sizes))
    is_short = uniform < short_seq_prob
    # Given that it is below short_seq_prob, it is uniform in [0, short_seq_prob).
    rank = uniform[is_short] / short_seq_prob * (max_num_tokens - 1)
    targets = np.full(len(sizes), max_num_tokens)
    targets[is_short] = np.minimum(2 + rank.astype(np.int64), max_num_tokens)
    firsts = np.searchsorted(documents.token_offsets[:-1], part_starts)
    return np.repeat(targets, np.diff(firsts))


def _cut(offsets_G: np.ndarray, max_num_tokens: int) -> tuple[np.ndarray, np.ndarray]:
    """Splits ranges of tokens into parts of at most `max_num_tokens` tokens.

    Takes the first token of each range, int64[G + 1]. Returns that of each part,
    int64[parts + 1], and the first part of each range, int64[G + 1].
    """
    num_parts = -(-np.diff(offsets_G) // max_num_tokens)
    first_part = offsets(num_parts)
    part = np.arange(first_part[-1]) - np.repeat(first_part[:-1], num_parts)
    starts = np.repeat(offsets_G[:-1], num_parts) + part * max_num_tokens
    return np.append(starts, offsets_G[-1]), first_part


def walk(starts_W: np.ndarray, following_S: np.ndarray) -> np.ndarray:
    """Returns the sorted indices visited by walks from starts_W along following_S.

    The index len(following_S) ends a walk. The number of rounds is logarithmic: after k
    rounds `visited` contains the first 2**k indices of each walk, and `jump` makes 2**k
    steps at once.
    """
    end = len(following_S)
    jump = np.append(following_S, end)
    visited = starts_W
    reached = jump[visited]
    while (reached != end).any():
        visited = np.concatenate([visited, reached[reached != end]])
        jump = jump[jump]
        reached = jump[visited]
    return np.sort(visited)


def _other_documents(
    own_N: np.ndarray, num_documents: int, random: CounterRandom
) -> np.ndarray:
    """Draws a document for each item, and its own only if MAX_TRIES draws give it."""
    other = random.below(np.full(len(own_N), num_documents))
    for _ in range(MAX_TRIES - 1):
        same = np.flatnonzero(other == own_N)
        other[same] = random.below(np.full(len(same), num_documents))
    return other


def _truncate(pairs: Pairs, max_num_tokens: int, random: CounterRandom) -> Pairs:
    """Removes tokens from the longer segment until A + B fit (:418).

    The released code removes each token from the front or the back at random.
    """
    a, b = truncate_longest(pairs.a_length, pairs.b_length, max_num_tokens)
    return dataclasses.replace(
        pairs,
        a_start=pairs.a_start + random.heads(pairs.a_length - a),
        a_length=a,
        b_start=pairs.b_start + random.heads(pairs.b_length - b),
        b_length=b,
    )


def truncate_longest(
    a_N: np.ndarray, b_N: np.ndarray, max_num_tokens: int | np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Returns the lengths of pairs after truncation, one token of the longer at a time.

    If both texts have the same length, the second is truncated.

    Source: google-research/bert, truncate_seq_pair in create_pretraining_data.py and
    run_classifier.py.
    """
    excess_N = np.maximum(a_N + b_N - max_num_tokens, 0)
    # The tokens that the longer text loses until both have the same length.
    difference_N = np.minimum(np.abs(a_N - b_N), excess_N)
    rest_N = excess_N - difference_N
    a_is_longer_N = a_N > b_N
    return (
        a_N - np.where(a_is_longer_N, difference_N, 0) - rest_N // 2,
        b_N - np.where(a_is_longer_N, 0, difference_N) - (rest_N + 1) // 2,
    )


def offsets(lengths_N: np.ndarray) -> np.ndarray:
    """Returns where each item starts, and the end of the last one, int64[N + 1]."""
    return np.concatenate([[0], np.cumsum(lengths_N, dtype=np.int64)])


def slice_indices(starts_N: np.ndarray, lengths_N: np.ndarray) -> np.ndarray:
    """Returns the indices of the slices [start, start + length), one after another."""
    index = np.repeat(starts_N + lengths_N - np.cumsum(lengths_N), lengths_N)
    index += np.arange(len(index))
    return index


# --------------------------------------------------------------------------- packing


def pack(
    lengths_N: np.ndarray, sequence_length: int, max_sequences_per_row: int
) -> np.ndarray:
    """Packs all pairs, of the given lengths with [CLS] and [SEP], into rows.

    No pair may be longer than a row.

    Best-fit decreasing: all pairs of a length are packed at once, the longest first,
    into the rows with the least room that suffices. The time therefore depends on the
    number of distinct lengths, not on the number of pairs. Pairs of the same length are
    packed in the given order. Returns int64[R, K], the indices of the pairs in each
    row, followed by -1.
    """
    K = max_sequences_per_row
    groups = _fill(lengths_N, sequence_length, K)
    padded = [lengths + (0,) * (K - len(lengths)) for _, lengths in groups]
    shapes = np.array(padded).reshape(-1, K)
    lengths_RK = np.repeat(shapes, [count for count, _ in groups], axis=0)
    # The places of each length are filled with the pairs of that length, in order.
    pairs_RK = np.full(lengths_RK.shape, -1)
    places = np.argsort(lengths_RK, axis=None, kind="stable")[-len(lengths_N) :]
    pairs_RK.ravel()[places] = np.argsort(lengths_N, kind="stable")
    return pairs_RK


def num_rows(
    lengths_N: np.ndarray, sequence_length: int, max_sequences_per_row: int
) -> int:
    groups = _fill(lengths_N, sequence_length, max_sequences_per_row)
    return sum(count for count, _ in groups)


def _fill(
    lengths_N: np.ndarray, sequence_length: int, max_sequences_per_row: int
) -> list[tuple[int, tuple[int, ...]]]:
    """Packs pairs; returns groups of (number of rows, lengths of their pairs)."""
    full: list[tuple[int, tuple[int, ...]]] = []
    by_room = collections.defaultdict[int, list[tuple[int, tuple[int, ...]]]](list)
    has_room = 0  # bit r is set if there are rows with room for r tokens

    counts = np.bincount(lengths_N)
    for length in np.flatnonzero(counts)[::-1].tolist():
        left = int(counts[length])
        while left:
            fitting = has_room >> length
            if fitting:
                room = length + (fitting & -fitting).bit_length() - 1
                num_rows, lengths = by_room[room].pop()
                taken = min(num_rows, left)
                if taken < num_rows:
                    by_room[room].append((num_rows - taken, lengths))
                if not by_room[room]:
                    has_room &= ~(1 << room)
                lengths, left = (*lengths, length), left - taken
            else:
                room = sequence_length
                many = min(max_sequences_per_row, sequence_length // length, left)
                taken, lengths = left // many, (length,) * many
                left -= taken * many
            room = sequence_length - sum(lengths)
            if len(lengths) == max_sequences_per_row or room == 0:
                full.append((taken, lengths))
            else:
                by_room[room].append((taken, lengths))
                has_room |= 1 << room
    return full + [group for room in sorted(by_room) for group in by_room[room]]
