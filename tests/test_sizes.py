"""The sizes of the project are at most those of .ci/sizes.toml."""

import importlib.util

from tests.commands import ROOT


def test_no_size_is_above_its_number():
    spec = importlib.util.spec_from_file_location("sizes", ROOT / ".ci/sizes.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    found, text = module.sizes(), module.FILE.read_text()
    assert min(found.values()) > 10
    assert not module.risen(found, text), "see python .ci/sizes.py --help"
    assert module.risen({"pages": 17, "tests": 1}, text) == {"pages": 17}
