"""The sizes of the project are at most those of .ci/sizes.toml."""

import runpy
from types import SimpleNamespace

from tests.commands import ROOT


def test_no_size_is_above_its_number():
    module = SimpleNamespace(**runpy.run_path(str(ROOT / ".ci/sizes.py")))
    found, text = module.sizes(), module.FILE.read_text()
    assert min(found.values()) > 10
    assert not module.risen(found, text), "see python .ci/sizes.py --help"
    assert module.risen({"pages": 17, "tests": 1}, text) == {"pages": 17}
