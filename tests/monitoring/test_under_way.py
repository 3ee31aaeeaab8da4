"""A person can tell from the lines what is done and how much is to come."""

import re
import time

from bert_jax.monitoring import progress


def lines(capsys):
    return capsys.readouterr().err.splitlines()


def test_pieces_are_counted_within_their_part(capsys):
    work = progress.UnderWay("preflight")
    work.begin("phase 1 of 2, its batch", 1)
    with work.doing("compiling"):
        pass
    assert lines(capsys) == [
        "preflight: phase 1 of 2, its batch: compiling ...",
        "preflight: phase 1 of 2, its batch: compiling: 0 s",
    ]
    work.begin("phase 1 of 2, remat", 2)
    for _ in range(3):
        with work.doing("compiling"):
            pass
    first, _, second, _, third, _ = lines(capsys)
    assert first == "preflight: phase 1 of 2, remat 1 of at most 2: compiling ..."
    assert second == "preflight: phase 1 of 2, remat 2 of at most 2: compiling ..."
    assert third == "preflight: phase 1 of 2, remat 3: compiling ..."


def test_what_takes_long_is_said_again(capsys, monkeypatch):
    monkeypatch.setattr(progress, "TICK_SECS", 0.01)
    work = progress.UnderWay("preflight")
    work.begin("phase 1 of 1", 1)
    deadline, written = time.monotonic() + 60, ""
    with work.doing("compiling"):
        while " so far" not in written and time.monotonic() < deadline:
            time.sleep(0.01)
            written += capsys.readouterr().err
    assert re.search(
        r"^preflight: phase 1 of 1: compiling: \d+ s so far$", written, re.M
    )


def test_work_without_parts_on_standard_output(capsys):
    work = progress.UnderWay("tokenizer", "stdout")
    with work.doing("training"):
        pass
    assert capsys.readouterr().out.splitlines() == [
        "tokenizer: training ...",
        "tokenizer: training: 0 s",
    ]
