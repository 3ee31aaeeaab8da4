"""The fake cloud of each test, whose calls are compared with the published tools."""

import pytest

from tests.launch import published
from tests.launch.fakes import Cloud


@pytest.fixture
def cloud(tmp_path):
    made = Cloud(tmp_path)
    yield made
    for words in made.calls():
        published.check(words)
