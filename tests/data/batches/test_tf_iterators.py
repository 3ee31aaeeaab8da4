"""Tests that iterators of `pipeline.dataset` can be broken off at any time."""

import dataclasses

import pytest

from tests import corpora
from tests.commands import run_code

OPEN = """
import gc, json, resource, threading, time
from bert_jax import config as config_lib
from bert_jax.data.batches import pipeline
from bert_jax.data.corpus import corpus as corpus_lib
from bert_jax.lazy_tensorflow import tf

config = config_lib.from_saved(json.load(open({path!r})))
dataset = pipeline.dataset(
    corpus_lib.read(config),
    config,
    split="train",
    seed=1,
    phase_index=0,
    first_step=0,
)

def work(ids):
    gc.collect()  # also of the iterator that calls this function
    return ids

def in_python(batch):
    return tf.numpy_function(work, [batch["input_ids"]], tf.int32)

# Prefetching never ends, so that threads of tf.data are in Python all the time.
busy = dataset.map(in_python, num_parallel_calls=2).prefetch(10**6)
gc.collect()
gc.freeze()  # makes later collections fast
"""

BREAK_OFF = """
def take(made, count):
    iterator = iter(made)
    for _ in range(count):
        next(iterator)
    return iterator

def memory():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss

variants = [dataset, dataset.prefetch(2), dataset.take(9), busy]
for i in range(200):
    iterator = take(variants[i % 4], i // 4 % 3)
    if i // 12 % 2:  # in a cycle, which some thread collects
        cycle = [iterator]
        cycle.append(cycle)
        del cycle
    del iterator
    if i % 12 == 0:
        collector = threading.Thread(target=gc.collect)
        collector.start()
    if i == 100:
        before = memory()
collector.join()
gc.collect()

def making():
    return [each for each in threading.enumerate() if "Pool" in each.name]

print(len(making()), (memory() - before) // 1024)
"""

LEAVE = """
left = [iter(made) for made in (dataset, busy, busy, dataset.prefetch(9))]
for iterator in left:
    next(iterator)
print("left")
"""


@pytest.mark.slow
def test_iterators_are_broken_off_and_some_are_left_at_the_end(tmp_path):
    """Threads do not accumulate, memory does not grow, and the program ends."""
    config = corpora.make_config(tmp_path)
    (phase,) = config.phases
    phase = dataclasses.replace(phase, global_batch_size=8, sequence_length=32)
    config = dataclasses.replace(config, phases=(phase,))
    corpora.write(config, corpora.make_documents(200))
    path = tmp_path / "config.json"
    path.write_text(config.to_json())
    opened = OPEN.format(path=str(path))
    done = run_code(opened + BREAK_OFF + LEAVE + "raise SystemExit(7)")
    assert (done.returncode, done.stderr) == (7, "")
    num_threads, grown_mib = map(int, done.stdout.split()[:2])
    assert num_threads <= 2  # those of the dataset, which is still there
    assert grown_mib < 100
    assert done.stdout.endswith("left\n")
