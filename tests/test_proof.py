"""The comparison with an earlier commit never passes without having compared."""

import shutil
import subprocess
import sys

from tests.commands import ROOT, capture


def proof(clone):
    return capture(sys.executable, clone / ".ci/proof.py", "--base=1234567")


def test_a_missing_commit_is_an_error_unless_the_clone_is_shallow(tmp_path):
    whole, shallow = tmp_path / "whole", tmp_path / "shallow"
    (whole / ".ci").mkdir(parents=True)
    shutil.copy(ROOT / ".ci/proof.py", whole / ".ci")
    git = ["git", "-C", whole, "-c", "user.name=a", "-c", "user.email=a@b.c"]
    for words in ("init -q", "add .", "commit -qm 1", "commit -qm 2 --allow-empty"):
        subprocess.run([*git, *words.split()], check=True)
    missing = proof(whole)
    assert (missing.returncode, missing.stdout) == (1, "")
    assert "commit 1234567 is missing; give another with --base" in missing.stderr
    clone = ["git", "clone", "-q", "--depth=1", f"file://{whole}", shallow]
    subprocess.run(clone, check=True)
    done = proof(shallow)
    assert done.returncode == 0 and "missing from this shallow clone" in done.stdout
