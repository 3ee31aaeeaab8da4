"""Prepare, train, evaluate and export, one after the other, with other choices."""

import pytest
import tokenizers

from tests.commands import run_well, small_run, write_text


@pytest.mark.slow
def test_sentencepiece_from_text_to_export(tmp_path):
    write_text(tmp_path / "documents.txt")
    arguments = small_run(
        tmp_path,
        **{
            "tokenizer.kind": "sentencepiece_unigram",
            "tokenizer.vocab_size": 45,  # the text has few different words
            "phases[0].num_steps": 2,
            "log_every_steps": 1,
        },
    )
    stdout = run_well("bert_jax.train", *arguments, f"--workdir={tmp_path / 'run'}")
    assert "tokenizer: training 45 pieces (sentencepiece_unigram): " in stdout
    assert "step 2/2" in stdout
    assert (tmp_path / "corpus/sentencepiece.model").is_file()
    output = tmp_path / "exported"
    run_well("bert_jax.export", f"--workdir={tmp_path / 'run'}", f"--output={output}")
    assert (output / "sentencepiece.model").is_file()
    assert not (output / "vocab.txt").exists()
    exported = tokenizers.Tokenizer.from_file(str(output / "tokenizer.json"))
    ids = exported.encode("The river follows the old garden.").ids
    assert ids[0] == 2 and ids[-1] == 3 and 1 not in ids  # [CLS], [SEP], [UNK]
    assert exported.decode(ids) == "the river follows the old garden."


@pytest.mark.slow
def test_a_packed_run_without_next_sentence_reports_no_metrics_of_it(tmp_path):
    """Covers the corpus, training with whole-word spans, and evaluation."""
    write_text(tmp_path / "documents.txt")
    arguments = small_run(
        tmp_path,
        **{
            "data.next_sentence": False,
            "data.whole_word_mask": True,
            "data.mask_ngram_max": 2,
            "phases[0].num_steps": 20,
            "phases[0].max_sequences_per_row": 4,
            "phases[0].max_predictions": 7,
            "checkpoint.every_steps": 20,
            "eval.every_steps": 20,
        },
    )
    stdout = run_well("bert_jax.train", *arguments, f"--workdir={tmp_path / 'run'}")
    stdout += run_well("bert_jax.evaluate", f"--workdir={tmp_path / 'run'}")
    lines = (tmp_path / "run/metrics.jsonl").read_text()
    assert "masked_lm_loss" in lines and "padding_efficiency" in lines
    for word in ("next sentence", "next_sentence", "nsp"):
        assert word not in stdout + lines
