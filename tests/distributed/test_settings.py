"""Tests that processes with different settings, code or libraries do not train."""

import pytest

import bert_jax
from tests.distributed.runs import JOIN, run_pairs

# What process 1 does before it joins -> the error.
DIFFERENCES = {
    "": None,
    "join = join.replace('masked_lm=1.0', 'masked_lm=2.0')": (
        "config.masked_lm is 2.0 in process 1, but 1.0 in process 0; start all"
        " processes with the same command, code and libraries"
    ),
    "sys.argv.append('--seed=2')": "--seed is 2 in process 1, but 1 in process 0",
    "multihost.importlib.metadata.version = lambda name: '0.1' if name == 'optax' else"
    " version(name)": 'the version of optax is "0.1" in process 1, but "',
    "multihost.bert_jax.__version__ = '9'": (
        'the version of bert_jax is "9" in process 1, but'
        f' "{bert_jax.__version__}" in process 0'
    ),
    "multihost.bert_jax.__file__ = errors.__file__.replace('errors', 'model/bert')": (
        "the digest of the sources of bert_jax is "
    ),
}


@pytest.fixture(scope="module")
def ended():
    programs = [
        f"""
            from importlib.metadata import version
            from absl import flags
            flags.DEFINE_integer("seed", 1, "", module_name="program")
            join = "{JOIN}"
            if me:
                {before or "pass"}
            flags.FLAGS(sys.argv)
            exec(join)
            print("joined", file=sys.stderr)
        """
        for before in DIFFERENCES
    ]
    return dict(zip(DIFFERENCES, run_pairs(programs), strict=True))


@pytest.mark.parametrize("before", DIFFERENCES)
def test_processes_that_differ_exit_with_2_before_devices_are_opened(ended, before):
    error = DIFFERENCES[before]
    for process, told in zip(ended[before], ("process 1: ", ""), strict=True):
        assert process.code == (2 if error else 0), process.stderr
        assert ("joined" in process.stderr) == (error is None)
        if error:
            assert f"error: {told}{error}" in process.stderr
