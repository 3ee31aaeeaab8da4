"""Verifies that the tests in README.md exist."""

import re

from tests.commands import ROOT

TEXT = (ROOT / "tests" / "faults" / "README.md").read_text()


def test_every_test_that_is_named_exists():
    names = re.findall(r"`(tests/\S+\.py)::(\w+)`", TEXT)
    assert len(names) > 60
    for path, name in names:
        text = (ROOT / path).read_text()
        assert f"\ndef {name}(" in text and name.startswith("test_"), f"{path}::{name}"


def test_all_25_cases_have_a_row():
    assert re.findall(r"^\| (\d+) \|", TEXT, re.M) == [str(i) for i in range(1, 26)]
