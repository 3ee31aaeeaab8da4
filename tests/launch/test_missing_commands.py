"""Without the command that a launcher drives, it says so before anything is done."""

import shutil

import pytest

from tests.launch import test_skypilot


@pytest.mark.skipif(shutil.which("sky") is not None, reason="sky is installed")
def test_what_is_not_installed_is_named(cloud):
    (cloud.fakes / "bin/sky").unlink()
    result = cloud.run(test_skypilot.SCRIPT, "run", *test_skypilot.FLAGS, code=2)
    assert "sky is not installed" in result.stderr
    assert cloud.calls() == []
