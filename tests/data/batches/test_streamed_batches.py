"""Tests of pipeline.batches on streamed text: exact at any step, on any hosts."""

import itertools
import textwrap

import numpy as np
import pytest
from numpy.testing import assert_equal

from bert_jax.data.corpus import build, streamed
from tests import corpora
from tests.commands import run_code
from tests.corpora import make_config, make_documents, parquet_bytes
from tests.data.batches.test_pipeline import ABANDON
from tests.data.corpus.test_streamed import two_processes, write_jsonl  # noqa: F401

STEPS = (0, 1000, 100_000)


@pytest.fixture(scope="module")
def config(tmp_path_factory):
    """A config that streams two JSON Lines files and a Parquet file as 4 shards."""
    directory = tmp_path_factory.mktemp("streamed")
    documents = make_documents(300)
    write_jsonl(directory / "1.jsonl", documents[:80])
    write_jsonl(directory / "2.jsonl", documents[80:160])
    text = ["\n".join(document) for document in documents[160:]]
    (directory / "3.parquet").write_bytes(parquet_bytes({"text": text}, 9))
    config = make_config(
        directory,
        sources=(
            f"jsonl:{directory}/*.jsonl#text",
            f"parquet:{directory}/*.parquet#text",
        ),
        stream=True,
        num_shards=4,
        num_streams=4,
    )
    build.prepare(config, 1)
    return config


def batches(config, first_step, count=1, *, corpus=None, **options):
    """Returns batches of a corpus that is opened for them, as in a new process."""
    options |= {"first_step": first_step}
    made = corpora.batches(corpus or build.find_corpus(config), config, **options)
    found = list(itertools.islice(made, count))
    made.close()
    return found


@pytest.mark.parametrize("num_hosts", [2, 4])
def test_batches_do_not_depend_on_the_number_of_hosts(config, num_hosts):
    for step in STEPS:
        whole = batches(config, step)
        parts = [
            batches(config, step, host=host, num_hosts=num_hosts)[0]
            for host in range(num_hosts)
        ]
        together = {
            name: np.concatenate([part[name] for part in parts]) for name in whole[0]
        }
        assert_equal([together], whole)


@pytest.mark.slow
def test_batches_do_not_depend_on_processes(config, two_processes, monkeypatch):  # noqa: F811
    corpus = build.find_corpus(config)
    assert corpus.stream.num_workers == 2
    monkeypatch.setattr(streamed, "BYTES_PER_WORKER", 2**22)
    for step in STEPS:
        assert_equal(batches(config, step, 3, corpus=corpus), batches(config, step, 3))


@pytest.mark.slow
def test_a_program_ends_while_text_is_being_encoded(config, tmp_path):
    """Neither threads nor processes block the exit of the interpreter."""
    path = tmp_path / "config.json"
    path.write_text(config.to_json())
    limits = """
        from bert_jax.data.corpus import streamed
        streamed.BYTES_PER_WORKER = 1
        streamed.KEPT_BYTES = 0
    """
    done = run_code(textwrap.dedent(limits) + ABANDON, str(path), "1")
    assert (done.returncode, done.stderr) == (0, "")
