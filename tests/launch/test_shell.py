"""Every script passes shellcheck, is executable and short."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.commands import ROOT

SCRIPTS = sorted(
    path for path in (ROOT / "launch").iterdir() if path.suffix in (".sh", ".sbatch")
)
BESIDE_PYTHON = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
SHELLCHECK = shutil.which("shellcheck", path=BESIDE_PYTHON)


@pytest.mark.skipif(not SHELLCHECK, reason="shellcheck is not installed")
def test_shellcheck():
    assert SHELLCHECK
    result = subprocess.run([SHELLCHECK, *SCRIPTS], capture_output=True, text=True)
    assert result.returncode == 0, result.stdout


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.name)
def test_scripts_are_executable_strict_and_short(path):
    lines = path.read_text().splitlines()
    assert os.access(path, os.X_OK)
    assert lines[0] == "#!/usr/bin/env bash" and lines[1].startswith("# ")
    assert "set -euo pipefail" in lines
    assert len(lines) < 100 and max(map(len, lines)) <= 92
