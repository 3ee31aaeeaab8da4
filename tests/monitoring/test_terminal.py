"""Tests of bert_jax.monitoring.terminal."""

import os
import pathlib

import pytest

from bert_jax.monitoring import progress as progress_lib
from bert_jax.monitoring import terminal

TRAIN = {
    "masked_lm_loss": 6.0,
    "masked_lm_accuracy": 0.1,
    "next_sentence_loss": 0.7,
    "next_sentence_accuracy": 0.5,
    "loss": 6.7,
    "sequences_per_sec": 10.0,
    "tokens_per_sec": 640.0,
    "mfu": 0.25,
    "padding_efficiency": 0.912,
}
HELD_OUT = {
    "eval_masked_lm_loss": 4.5,
    "eval_masked_lm_accuracy": 0.27,
    "eval_next_sentence_loss": 0.5,
    "eval_next_sentence_accuracy": 0.8,
    "eval_next_sentence_majority": 0.57,
}
LINES = [{"step": step, **TRAIN} for step in (10, 20)] + [{"step": 20, **HELD_OUT}]


def test_summary_compares_with_guessing():
    words = terminal.summarize("runs/x", 20, 60, LINES, 6.0, 1)
    assert "4.50 nats, against 6.00" in words
    assert "accuracy is 80%, against 57% for the more frequent label" in words
    assert words.splitlines()[-4:] == [
        "Next: evaluate the model again, export it for Hugging Face transformers, or"
        " fine-tune it on train.csv and dev.csv, with the columns text and label:",
        "  python -m bert_jax.evaluate --workdir=runs/x",
        "  python -m bert_jax.export --workdir=runs/x --output=runs/x-export",
        "  python -m bert_jax.finetune --config=configs/finetune/own.py --model=runs/x",
    ]
    without_held_out = terminal.summarize("runs/x y", 2, 6, [], 4, 1)
    assert "'--workdir=runs/x y'" in without_held_out
    assert "evaluate" not in without_held_out


@pytest.mark.parametrize(
    ("unigram_entropy", "text"),
    [
        (5.51, None),
        (5.5, None),
        (5.49, "little more than word frequencies"),
        (4.41, "little more than word frequencies"),
        (4.39, "not even learned word frequencies"),
    ],
)
def test_summary_warns_of_a_model_no_better_than_random_weights(unigram_entropy, text):
    words = terminal.summarize("runs/x", 20, 60, LINES, unigram_entropy, 1)
    assert ("WARNING" in words) == (text is not None)
    assert ("compare with --from_scratch" in words) == (text is None)
    if text is not None:
        assert text in words and "no better a start for fine-tuning" in words
        assert "num_steps" in words and "configs/laptop.py" in words
    line = HELD_OUT | {"step": 20, "eval_masked_lm_loss": None}  # it was not finite
    words = terminal.summarize("runs/x", 20, 60, [line], unigram_entropy, 1)
    assert "loss is inf nats" in words and "not even learned word frequencies" in words


@pytest.mark.parametrize(("accuracy", "warns"), [(0.65, True), (0.66, False)])
def test_summary_warns_of_pairs_that_are_not_learned(accuracy, warns):
    """The more frequent label has a share of 0.57."""
    line = HELD_OUT | {"step": 20, "eval_next_sentence_accuracy": accuracy}
    words = terminal.summarize("runs/x", 20, 60, [line], 6.0, 1)
    assert ("has not learned next-sentence prediction" in words) == warns


def test_a_run_without_held_out_text_is_plotted_and_summarized(tmp_path):
    words = terminal.summarize("runs/x", 20, 60, LINES[:2], None, 1)
    assert "Trained to step 20" in words and "held-out" not in words
    path = terminal.plot_curves(str(tmp_path), LINES[:2], None)
    content = pathlib.Path(path).read_bytes()
    assert content.startswith(b"\x89PNG") and len(content) > 5000


def test_probes_are_in_the_line_and_a_plot_of_their_own(tmp_path, monkeypatch):
    results = {"probe/stsb": 41.26, "probe/blimp": 58.0}
    text = terminal.format_held_out(HELD_OUT | results)
    assert text.endswith(
        "accuracy 0.800 (0.570 for the more frequent label), blimp 58.0%, stsb 41.3%"
    )
    assert "blimp" not in terminal.format_held_out(HELD_OUT)
    drawn: list = []
    savefig = "matplotlib.figure.Figure.savefig"
    monkeypatch.setattr(savefig, lambda self, *_, **__: drawn.append(self))
    monkeypatch.setattr(terminal.storage, "write_with", lambda path, write: write(path))
    failed = {"step": 30, **HELD_OUT, "probe/stsb": None, "probe/blimp": 60.0}
    terminal.plot_curves(str(tmp_path), [*LINES[:2], LINES[2] | results, failed], 6.0)
    curves = {x.get_label(): x.get_xydata().tolist() for x in drawn[0].axes[2].lines}
    assert curves == {"blimp": [[20, 58], [30, 60]], "stsb": [[20, 41.26]]}


def test_progress_prints_lines(capsys):
    progress = progress_lib.StepProgress(0, 100)
    progress.advance(1)
    progress.advance(11)
    progress.update(10, terminal.format_steps(TRAIN))
    line = capsys.readouterr().out
    for part in (
        "step 10/100",
        "loss 6.700",
        "10 seq/s",
        "640 tok/s",
        "25.0%",
        "padding  8.8%",
        "left",
    ):
        assert part in line


def test_no_next_sentence_metrics_without_pairs(tmp_path, capsys):
    lines = [{k: v for k, v in x.items() if "next_sentence" not in k} for x in LINES]
    words = terminal.summarize("runs/x", 20, 60, lines, 6.0, 1)
    assert "27% of the masked tokens correctly." in words
    words += terminal.format_held_out(lines[-1])
    progress = progress_lib.StepProgress(0, 100)
    progress.update(10, terminal.format_steps(lines[0]))
    words += capsys.readouterr().out
    assert "next sentence" not in words and "nsp" not in words
    assert os.path.getsize(terminal.plot_curves(str(tmp_path), lines, 6.0)) > 5000
