"""Initializing a model from published weights, an export or the workdir of a run."""

import dataclasses
import json
import shutil
import types

import jax
import numpy as np
import pytest

from bert_jax import errors
from bert_jax.checkpoint import workdir as workdir_lib
from bert_jax.data.corpus import corpus
from bert_jax.data.tokenizers import base, training, wordpiece
from bert_jax.loading import init_from
from bert_jax.model import bert, parameters
from bert_jax.training import step as step_lib
from tests.commands import error_of, run_well, small_run
from tests.conftest import make_config, use_mesh
from tests.corpora import changed, rewrite_manifest
from tests.models import (
    VOCAB,
    assert_same,
    change_json,
    change_tensors,
    keep_only_vocab_txt,
    read,
    tensors_of,
)


@pytest.mark.parametrize("mesh_shape", [(1, 1, 1), (2, 2, 2)])
def test_weights_replace_the_initial_ones(source, mesh_shape):
    directory, expected = source
    use_mesh(*mesh_shape)
    config = make_config()
    _, params = bert.build(config.model, len(VOCAB), jax.random.key(0))
    placed = parameters.place(params, read(directory).arrays)
    assert_same(parameters.by_name(placed), expected)
    for new, old in zip(jax.tree.leaves(placed), jax.tree.leaves(params), strict=True):
        assert new.sharding == old.sharding


def test_the_mean_of_a_new_state_is_its_weights(source):
    """So that `evaluate` and `export` of step 0 have them, too."""
    directory, expected = source
    mesh = use_mesh(1, 1, 1)
    config = make_config(optimizer__average_steps=3, tokenizer__vocab_size=len(VOCAB))
    _, init = step_lib.init_state(config)
    corpus = types.SimpleNamespace(sha256="")
    _, state = read(directory).first_state(init, corpus, mesh)
    assert_same(parameters.by_name(state.average), expected)
    assert state.weights is state.average


def test_more_positions_repeat_the_table(source):
    directory, expected = source
    weights = read(directory, model__max_position_embeddings=80)
    table = expected["bert.embeddings.position"]
    found = weights.arrays["bert.embeddings.position"]
    np.testing.assert_array_equal(found, np.concatenate([table, table, table[:16]]))
    assert weights.notes == ("32 positions, repeated to make 80",)


@pytest.mark.slow
def test_train_from_an_export_and_from_a_workdir(trained, tmp_path):
    """The held-out metrics before the first update equal those of the source."""
    exported = tmp_path / "exported"
    workdir = trained / "run"
    run_well("bert_jax.export", f"--workdir={workdir}", f"--output={exported}")
    metrics = [json.loads(x) for x in (workdir / "metrics.jsonl").open()][-1]
    found = {}
    for source in (exported, workdir):
        target = tmp_path / f"from-{source.name}"
        changes = {
            "init_from": str(source),
            "phases[0].num_steps": 1,
            "eval.every_steps": 1,
            "checkpoint.every_steps": 1,
            # The released schedule has rate 0 at step 0, so no parameter changes.
            "optimizer.warmup_steps": 1,
            "log_every_steps": 1,
        }
        arguments = [*small_run(trained, **changes), f"--workdir={target}"]
        stdout = run_well("bert_jax.train", *arguments)
        assert f"from the weights in {source} with a new optimizer" in stdout
        lines = [json.loads(x) for x in (target / "metrics.jsonl").open()]
        found[source] = lines[-1]["eval_masked_lm_loss"]
    # A resumed run does not read the source again.
    shutil.rmtree(exported)
    target = tmp_path / "from-exported"
    changes["init_from"] = str(exported)
    run_well("bert_jax.train", *small_run(trained, **changes), f"--workdir={target}")
    assert found[exported] == found[workdir]
    assert found[workdir] == pytest.approx(metrics["eval_masked_lm_loss"], rel=1e-6)


def test_train_with_an_invalid_source_writes_nothing(trained, tmp_path):
    workdir, vocabulary = tmp_path / "run", tmp_path / "vocab.txt"
    vocabulary.write_text("\n".join(base.SPECIAL_TOKENS))
    changes = {
        "init_from": str(trained / "run"),
        "data.corpus_dir": str(tmp_path / "corpus"),
        "tokenizer.vocab_file": str(vocabulary),
        "tokenizer.vocab_size": 5,
    }
    arguments = [*small_run(trained, **changes), f"--workdir={workdir}"]
    message = f"error: {trained}/corpus/vocab.txt is neither the run's vocabulary"
    assert error_of("bert_jax.train", *arguments).startswith(message)
    assert not workdir.exists() and not (tmp_path / "corpus").exists()


def test_incomplete_workdir_is_an_error(trained, tmp_path):
    workdir = shutil.copytree(trained / "run", tmp_path / "run")
    config = workdir_lib.read_config(str(workdir))
    continued = dataclasses.replace(config, init_from=str(workdir))
    init_from.open_source(continued)
    (newest,) = (workdir / "checkpoints/20").glob("state/manifest.ocdbt")
    outside = tmp_path / "outside"
    newest.rename(outside)
    newest.symlink_to(outside)
    with pytest.raises(errors.ConfigError, match="is a link to .*outside"):
        init_from.open_source(continued)
    shutil.rmtree(workdir / "checkpoints")
    with pytest.raises(errors.ConfigError, match="has no checkpoint yet"):
        init_from.open_source(continued)
    workdir_lib.write_config(str(workdir), changed(config, "data", corpus_dir="gone"))
    with pytest.raises(errors.ConfigError, match="at 'gone', which is missing"):
        init_from.open_source(continued)


def test_workdir_with_a_replaced_corpus_is_rejected(trained, tmp_path):
    workdir = shutil.copytree(trained / "run", tmp_path / "run")
    other = shutil.copytree(trained / "corpus", tmp_path / "corpus")
    rewrite_manifest(other, cleaning={"lines_cut": 1})
    config = workdir_lib.read_config(str(workdir))
    moved = changed(config, "data", corpus_dir=str(other))
    workdir_lib.write_config(str(workdir), moved)
    continued = dataclasses.replace(config, init_from=str(workdir))
    with pytest.raises(errors.ConfigError, match="was not trained on the corpus"):
        init_from.open_source(continued)


def test_corrupt_checkpoint_is_an_error(trained, tmp_path):
    workdir = shutil.copytree(trained / "run", tmp_path / "run")
    (workdir / "checkpoints/20/meta/metadata").write_text("{")
    config = workdir_lib.read_config(str(workdir))
    continued = dataclasses.replace(config, init_from=str(workdir))
    with pytest.raises(errors.ConfigError, match="checkpoints/20 is corrupt") as e:
        source = init_from.open_source(continued)
        init_from.read(source, continued, corpus.read(config).tokenizer)
    assert "\n" not in str(e.value)


def extend(directory, *tokens):
    """Reads the source for a run whose vocabulary adds tokens at the end."""
    tokenizer = wordpiece.WordPiece((*VOCAB, *tokens), lowercase=True)
    return read(directory, tokenizer, tokenizer__vocab_size=len(tokenizer.vocab))


def test_new_token_is_the_mean_of_its_pieces(source):
    directory, expected = source
    # "w91" and "w9" are tokens and "##1" is not, so w91w9 cannot be split into pieces.
    weights = extend(directory, "w91-w90", "w91w9", "w92 w3")
    old = {"w90": VOCAB.index("w90"), "w91": VOCAB.index("w91")}
    for name in ("bert.embeddings.word", "decoder_bias"):
        rows, before = weights.arrays[name], expected[name]
        assert_same({name: rows[:97]}, {name: before})
        unk = before[VOCAB.index("[UNK]")]  # for the hyphen
        pieces = [before[old["w91"]], unk, before[old["w90"]]]
        np.testing.assert_allclose(rows[97], np.mean(pieces, axis=0), rtol=1e-6)
        np.testing.assert_array_equal(rows[98], unk)
        assert len(rows) == 100
    others = expected.keys() - {"bert.embeddings.word", "decoder_bias"}
    assert_same(
        {name: weights.arrays[name] for name in others},
        {name: expected[name] for name in others},
    )
    (note,) = weights.notes
    assert note.startswith("3 new token(s), each the mean of its pieces: w91-w90, ")


def test_rows_of_added_tokens(source):
    """Reads a tokenizer whose last token is not in vocab.txt but an added token."""
    directory, expected = source
    keep_only_vocab_txt(directory, VOCAB[:-1])
    (directory / "added_tokens.json").write_text('{"w91": 96}')
    assert_same(read(directory).arrays, expected)
    (directory / "added_tokens.json").unlink()
    added = {"96": {"content": "w91", "special": False}}
    change_json(directory, "tokenizer_config.json", added_tokens_decoder=added)
    assert_same(read(directory).arrays, expected)


@pytest.mark.parametrize("line_end", ["\n", "\r\n"])
def test_tokens_that_are_line_breaks_in_python(source, line_end):
    """U+2028 and ##U+2028 are tokens of bert-base-chinese."""
    directory, expected = source
    breaks = ["\u2028", "##\u2028", "\u2029", "\x85", "\v", "\f", "\x1c", "\u3000"]
    vocab = [*VOCAB[: -1 - len(breaks)], *breaks, VOCAB[-1]]
    content = "".join(token + line_end for token in vocab[:-1])
    keep_only_vocab_txt(directory, ())
    (directory / "vocab.txt").write_bytes(content.encode())
    (directory / "added_tokens.json").write_text(json.dumps({VOCAB[-1]: 96}))
    weights = read(directory, wordpiece.WordPiece(tuple(vocab), lowercase=True))
    assert_same(weights.arrays, expected)
    assert weights.notes == ()


def test_tokenizer_with_other_rules_is_rejected(directory):
    keep_only_vocab_txt(directory, VOCAB)
    change_json(directory, "tokenizer_config.json", strip_accents=False)
    with pytest.raises(errors.ConfigError) as error:
        read(directory)
    message = (
        f"config.init_from: the tokenizer of {directory}/vocab.txt has other rules"
    )
    assert message in str(error.value)


def test_vocabulary_of_another_kind_is_rejected(directory):
    kind = {"tokenizer__kind": "sentencepiece_unigram"}
    text = [[f"word{i} {i * 7919} here"] for i in range(200)]
    other = training.train(text, make_config(**kind).tokenizer)
    with pytest.raises(errors.ConfigError, match="has a vocab.txt; use the model's"):
        read(directory, other, **kind)


def test_unused_tokens_may_be_replaced(source):
    directory, expected = source
    unused = tuple("[unused0]" if token == "w50" else token for token in VOCAB)
    keep_only_vocab_txt(directory, unused)
    ours = tuple("w1w2" if token == "w50" else token for token in VOCAB)
    weights = read(directory, wordpiece.WordPiece(ours, True))
    name = "bert.embeddings.word"
    rows, before = weights.arrays[name], expected[name]
    is_other = np.any(rows != before, axis=1)
    np.testing.assert_array_equal(np.flatnonzero(is_other), [VOCAB.index("w50")])
    np.testing.assert_array_equal(rows[is_other][0], before[VOCAB.index("[UNK]")])


TABLES = ("bert.embeddings.word_embeddings.weight", "cls.predictions.bias")


@pytest.mark.parametrize(
    ("padded", "vocab_size"),
    [
        (TABLES, 104),
        (TABLES, 97),
        (TABLES[:1], 104),
        (TABLES[:1], 97),
        (TABLES[1:], 97),
    ],
)
def test_padding_rows_are_dropped(source, padded, vocab_size):
    """Drops them in one or both tables, counted in config.json's vocab_size or not."""
    directory, expected = source
    for name in padded:
        array = tensors_of(directory)[name]
        padding = np.ones((7, *array.shape[1:]), np.float32)
        change_tensors(directory, **{name: np.concatenate([array, padding])})
    change_json(directory, "config.json", vocab_size=vocab_size)
    weights = read(directory)
    assert_same(weights.arrays, expected)
    assert weights.notes == ("dropped 7 rows without a token",)


@pytest.mark.parametrize(
    "vocab",
    [VOCAB[:-1], (*VOCAB[:-2], VOCAB[-1], VOCAB[-2]), (*VOCAB[:-1], "new", VOCAB[-1])],
)
def test_vocabulary_that_does_not_extend_the_sources_is_rejected(directory, vocab):
    tokenizer = wordpiece.WordPiece(vocab, lowercase=True)
    message = r"nor the beginning of it: token \d+ is 'w\d+' in the model and"
    with pytest.raises(errors.ConfigError, match=message):
        read(directory, tokenizer, tokenizer__vocab_size=len(vocab))
