"""What a person reads at the end of a run."""

import errno
import io
from types import SimpleNamespace

import pytest

from bert_jax.monitoring import report
from tests.conftest import be_a_terminal

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
}
LINES = [{"step": step, **TRAIN} for step in (10, 20)] + [{"step": 20, **HELD_OUT}]


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(7.4, "7 s"), (200, "3 min 20 s"), (7500, "2 h 05 min"), (59.6, "1 min 00 s")],
)
def test_durations_read_well(seconds, text):
    assert report.duration(seconds) == text


def test_closing_words_compare_with_guessing():
    words = report.closing_words("runs/x", 20, 60, LINES, 6.0, 0.57, 1)
    assert "4.50 nats, against 6.00" in words and "80% of the time" in words
    assert words.splitlines()[-4:] == [
        "Next, to measure it again, to write it for Hugging Face transformers, or to"
        " tune it on labelled data:",
        "  python -m bert_jax.evaluate --workdir=runs/x",
        "  python -m bert_jax.export --workdir=runs/x --output=DIR",
        "  python -m bert_jax.finetune --config=configs/finetune/X.py --model=runs/x",
    ]
    assert "'--workdir=runs/x y'" in report.closing_words(
        "runs/x y", 2, 6, [], 4, 0.5, 1
    )


@pytest.mark.parametrize(
    ("unigram_entropy", "text"),
    [
        (5.51, None),
        (5.5, None),
        (5.49, "little more than word frequencies"),
        (4.41, "little more than word frequencies"),
        (4.39, "not even learnt word frequencies"),
    ],
)
def test_closing_words_warn_of_a_model_no_better_than_random_weights(
    unigram_entropy, text
):
    words = report.closing_words("runs/x", 20, 60, LINES, unigram_entropy, 0.57, 1)
    assert ("WARNING" in words) == (text is not None)
    if text is not None:
        assert text in words and "no better a start for fine-tuning" in words
        assert "num_steps" in words and "configs/laptop.py" in words


def test_closing_words_name_the_hosts_of_the_next_commands():
    words = report.closing_words("runs/x", 20, 60, LINES, 6.0, 0.57, 4)
    (line,) = [line for line in words.splitlines() if line.startswith("Next")]
    assert line.count("(on one host)") == 2 and "(on all hosts, as train)" in line
    alone = report.closing_words("runs/x", 20, 60, LINES, 6.0, 0.57, 1)
    assert "host" not in alone


def test_closing_words_without_held_out_text():
    words = report.closing_words("runs/x", 20, 60, LINES[:2], None, None, 1)
    assert "Trained to step 20" in words and "held-out" not in words


def test_plot_is_a_picture_with_and_without_held_out_points(tmp_path):
    for lines, entropy in ((LINES, 6.0), (LINES[:2], None)):
        path = report.plot_curves(str(tmp_path), lines, entropy)
        assert path.read_bytes().startswith(b"\x89PNG") and path.stat().st_size > 5000


class Gone(io.StringIO):
    """A standard output of which every write fails."""

    def __init__(self, error: OSError):
        super().__init__()
        self.error = error

    def write(self, text: str) -> int:
        raise self.error


def test_a_terminal_that_is_gone_ends_no_run(monkeypatch):
    monkeypatch.setattr("sys.stdout", Gone(OSError(errno.EIO, "gone")))
    report.Progress(0, 100).say("step 1")


def test_a_reader_that_wants_no_more_does(monkeypatch):
    monkeypatch.setattr("sys.stdout", Gone(BrokenPipeError()))
    with pytest.raises(BrokenPipeError):
        report.Progress(0, 100).say("step 1")


def test_progress_prints_plain_lines_without_a_terminal(capsys):
    progress = report.Progress(0, 100)
    progress.took(1)
    progress.took(11)
    progress.update(10, report.step_words(TRAIN))
    progress.close()
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


def test_the_time_left_is_reckoned_without_the_compilation(monkeypatch, capsys):
    """A line comes one step late, the first after a resume at once."""
    clock = SimpleNamespace(monotonic=lambda: clock.now, now=0.0)
    monkeypatch.setattr(report, "time", clock)
    progress = report.Progress(400, 1600)
    clock.now = 3600.0  # compiling
    progress.took(401)
    progress.update(400, "resumed")
    clock.now += 10.0
    progress.took(411)
    progress.update(410, "late")
    progress.took(1600)
    progress.update(1600, "last")
    assert capsys.readouterr().out.splitlines() == [
        "step 400/1,600    resumed",
        "step 410/1,600    late  19 min 49 s left",
        "step 1,600/1,600  last  0 s left",
    ]


def test_lines_stand_in_columns_whatever_the_numbers():
    fast = TRAIN | {"loss": 11.25, "sequences_per_sec": 4565, "mfu": 0.004}
    assert len(report.step_words(fast)) == len(report.step_words(TRAIN))
    untimed = {k: v for k, v in TRAIN.items() if "_per_sec" not in k and k != "mfu"}
    words = report.step_words(untimed)
    assert report.step_words(TRAIN).startswith(words) and "/s" not in words


def test_on_a_terminal_lines_stand_above_a_bar(monkeypatch):
    """Eighty columns have no room for both beside each other."""
    terminal = be_a_terminal(monkeypatch)
    monkeypatch.setenv("COLUMNS", "80")
    progress = report.Progress(0, 1600)
    progress.update(40, report.step_words(TRAIN))
    progress.close()
    text = terminal.getvalue()
    assert "step 40  loss 6.700" in text and "padding  8.8%" in text
    assert "40/1600" in text and "\u2501" in text


def test_nothing_of_next_sentences_where_there_are_none(tmp_path, capsys):
    lines = [{k: v for k, v in x.items() if "next_sentence" not in k} for x in LINES]
    words = report.closing_words("runs/x", 20, 60, lines, 6.0, None, 1)
    assert "27% of the masked tokens." in words
    words += report.held_out_words(lines[-1])
    progress = report.Progress(0, 100)
    progress.update(10, report.step_words(lines[0]))
    progress.close()
    words += capsys.readouterr().out
    assert "next sentence" not in words and "nsp" not in words
    assert report.plot_curves(str(tmp_path), lines, 6.0).stat().st_size > 5000


def test_a_log_file_has_a_line_at_least_every_half_minute(monkeypatch, capsys):
    clock = SimpleNamespace(monotonic=lambda: clock.now, now=0.0)
    monkeypatch.setattr(report, "time", clock)
    progress = report.Progress(0, 100)
    clock.now = 3600.0  # compiling
    for step in range(1, 11):
        progress.took(step)
        clock.now += 13.0
    progress.tick("  dev set: 3 of 9 rows")
    clock.now += 29.0
    progress.tick("  dev set: 6 of 9 rows")
    lines = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    assert lines == [
        "step 4/100 20 min 48 s left",
        "step 7/100 20 min 09 s left",
        "step 10/100 19 min 30 s left",
        "step 10/100 dev set: 6 of 9 rows 26 min 30 s left",
    ]
