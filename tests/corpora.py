"""Small corpora of made-up documents, written without prepare and read back as text."""

import collections
import contextlib
import io
import json
import os
import pathlib
import random
from unittest import mock

import numpy as np
import pyarrow
import pytest
from pyarrow import parquet

from bert_jax import config as config_lib
from bert_jax.data.batches import pipeline
from bert_jax.data.corpus import build, corpus, encoding, keyed, writer
from bert_jax.data.sources.kind import Document
from bert_jax.data.tokenizers import tokenizers
from tests import conftest, one_phase
from tests.commands import write_text

WORDS = [f"w{i}" for i in range(50)]


def make_config(directory, vocab_size=55, **data):
    """A config of a two-shard corpus whose vocabulary file holds WORDS."""
    vocab = [*tokenizers.SPECIAL_TOKENS, *WORDS]
    vocab += [f"[unused{i}]" for i in range(vocab_size - len(vocab))]
    path = directory / f"vocab-{vocab_size}.txt"
    path.write_text("\n".join(vocab) + "\n")
    config = one_phase.get_config()
    config.data.update(
        {
            "sources": (f"text:{directory}/text.txt",),
            "corpus_dir": str(directory / "corpus"),
            "num_shards": 2,
            "num_streams": 2,
            "validation_fraction": 0.2,
        }
    )
    config.data.update(data)
    config.tokenizer.vocab_file = str(path)
    config.tokenizer.vocab_size = vocab_size
    return config_lib.from_config_dict(config)


def of_text(directory, **changes):
    """Prepares a corpus of written text; returns its config and the corpus."""
    write_text(directory / "text.txt", 300)
    config = conftest.make_config(
        data__sources=(f"text:{directory}/*.txt",),
        data__corpus_dir=str(directory / "corpus"),
        **changes,
    )
    return config, build.find_corpus(config)


def changed(config, section, **values):
    tree = json.loads(config.to_json())
    tree[section] |= values
    return config_lib.from_config_dict(tree)


def phase_of(length=128, short_seq_prob=0.1, per_row=1, next_sentence=True):
    """Returns the data config and the phase of rows of a length."""
    config = one_phase.get_config()
    config.data.short_seq_prob = short_seq_prob
    config.data.next_sentence = next_sentence
    config.model.max_position_embeddings = length
    config.phases[0].update(
        sequence_length=length,
        max_predictions=max(length // 2, 8),
        max_sequences_per_row=per_row,
    )
    made = config_lib.from_config_dict(config)
    return made.data, made.phases[0]


@contextlib.contextmanager
def interrupted(place=writer, name="finish"):
    """Interrupts at the call of a function: after all shards, unless one is given."""
    raises = mock.patch.object(place, name, side_effect=KeyboardInterrupt)
    with raises, pytest.raises(KeyboardInterrupt):
        yield


def elsewhere(config, name="2", **data):
    """Returns a config with another corpus directory beside the one of a config."""
    directory = f"{config.data.corpus_dir}-{name}"
    return changed(config, "data", corpus_dir=directory, **data)


def make_documents(count, seed=0, max_sentences=8):
    rng = random.Random(seed)
    return [
        [
            " ".join(rng.choices(WORDS, k=rng.randint(1, 9)))
            for _ in range(rng.randint(1, max_sentences))
        ]
        for _ in range(count)
    ]


def raw(sentences):
    """The document of these sentences as a source would give it."""
    return Document(tuple(sentences), is_split=True)


def write_source(config, documents, number=0):
    """Writes documents to a source of one file."""
    write_documents(config.data.sources[number].removeprefix("text:"), documents)


def write_documents(path, documents):
    """Writes documents of several sentences, a sentence a line."""
    with open(path, "w") as file:
        file.write("\n\n".join("\n".join(document) for document in documents))


def parquet_bytes(columns, rows=None):
    """Returns a Parquet file whose row groups have some rows."""
    buffer = io.BytesIO()
    parquet.write_table(pyarrow.table(columns), buffer, row_group_size=rows)
    return buffer.getvalue()


def shard_of(ranges, key):
    """Returns the index of the shard of a key."""
    number = np.uint64(keyed.number(key))
    return int(np.searchsorted(ranges.inner_edges, number, side="right"))


def write(config, documents, tokenizer=None):
    """Makes the corpus of documents in memory and opens it."""
    tokenizer = tokenizer or tokenizers.load(config.tokenizer)
    dtype = encoding.id_dtype(tokenizer, config.data)
    counts = collections.Counter()
    encoder = encoding.DocumentEncoder(config.data, tokenizer)
    entries = [e for document in documents for e in encoder(raw(document), 0, counts)]
    num_validation = keyed.num_validation_shards(
        config.data, encoding.num_tokens(counts), dtype
    )
    ranges = keyed.key_ranges(config.data, num_validation)
    by_shard = collections.defaultdict(list)
    for entry in entries:
        by_shard[ranges.files[shard_of(ranges, entry.key)]].append(entry)
    os.makedirs(config.data.corpus_dir, exist_ok=True)
    written = {}
    for file, of_shard in by_shard.items():
        piece = keyed.from_entries(of_shard, dtype)
        path = os.path.join(config.data.corpus_dir, file)
        written[file] = writer.write_shard(path, [piece])
    writer.finish(config, tokenizer, None, counts, written, ())
    return corpus.read(config)


def batches(found, config, **options):
    """Returns the batches of a phase: the first, from its start, unless given."""
    options = {"split": "train", "seed": 1, "phase_index": 0, "first_step": 0} | options
    return pipeline.batches(found, config, **options)


def rewrite_manifest(directory, **values):
    """Changes entries of the manifest and updates its digest."""
    path = pathlib.Path(directory, "manifest.json")
    manifest = json.loads(path.read_text()) | values
    manifest["sha256"] = corpus.manifest_digest(manifest)
    path.write_text(json.dumps(manifest))


def files(directory):
    """Returns the contents of every file of a directory."""
    found = {}
    for file in os.scandir(directory):
        assert file.is_file(), f"{file.path} should not be there"
        with open(file, "rb") as opened:
            found[file.name] = opened.read()
    return found


def load_text(found, split, i):
    """Returns the documents of a shard as text, through the ids."""
    tokens, documents = found.load(found.shards[split][i])
    words = [found.tokenizer.vocab[token] for token in tokens]
    sentences = [
        " ".join(words[start:stop])
        for start, stop in zip(
            documents.token_offsets[:-1], documents.token_offsets[1:], strict=True
        )
    ]
    return [
        sentences[start:stop]
        for start, stop in zip(
            documents.sentence_offsets[:-1], documents.sentence_offsets[1:], strict=True
        )
    ]


def all_text(found):
    """Returns the documents of all shards."""
    return [
        document
        for split, shards in found.shards.items()
        for i in range(len(shards))
        for document in load_text(found, split, i)
    ]


def places(found):
    """Returns {document: (split, shard file)}, and checks that each has one place."""
    result = {}
    for split, shards in found.shards.items():
        for i, shard in enumerate(shards):
            for document in load_text(found, split, i):
                assert result.setdefault(tuple(document), (split, shard.file))
                assert result[tuple(document)] == (split, shard.file)
    return result
