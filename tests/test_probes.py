"""Probes in runs: their results are logged, and no bit of the run changes."""

import dataclasses
import json

import jax
import numpy as np
import pytest
import scipy.stats

from bert_jax import inference, probes
from bert_jax.errors import ConfigError
from bert_jax.interop import huggingface_write
from bert_jax.model import bert
from bert_jax.probes import Pairs, Target
from tests import probe_data, runs
from tests.commands import error_of, run_well, small_run, write_text
from tests.conftest import make_config, slow, use_mesh
from tests.models import TOKENIZER, VOCAB

NAMES = ("probe/blimp", "probe/stsb")
SHORT = {"phases[0].num_steps": 20, "checkpoint.every_steps": 10}  # as in `trained`


def results(workdir):
    """Returns the results of both probes by step."""
    return {
        line["step"]: [line[name] for name in NAMES]
        for line in runs.lines(workdir)
        if NAMES[0] in line
    }


@pytest.fixture(scope="module")
def probed(trained, tmp_path_factory):
    """The workdir of the run in `trained` with probes every ten steps, and its specs"""
    directory = tmp_path_factory.mktemp("probed")
    specs = probe_data.specs(directory)
    changes = SHORT | {"eval.probes": specs, "eval.every_steps": 10}
    arguments = small_run(trained, **changes)
    stdout = run_well("bert_jax.train", *arguments, f"--workdir={directory / 'run'}")
    assert ", blimp " in stdout and "%, stsb " in stdout
    return directory / "run", specs


@pytest.mark.slow
def test_probes_change_no_bit_of_a_run(trained, probed):
    workdir, _ = probed
    for step in (10, 20):
        runs.assert_same_bits(workdir, trained / "run", step)
    plain = [line for line in runs.lines(trained / "run") if "loss" in line]
    with_probes = [line for line in runs.lines(workdir) if "loss" in line]
    for a, b in zip(with_probes, plain, strict=True):
        assert [a[name] for name in ("step", "loss", "grad_norm")] == [
            b[name] for name in ("step", "loss", "grad_norm")
        ]


@pytest.mark.slow
def test_evaluate_reports_the_probes_of_the_run(probed):
    workdir, specs = probed
    found = json.loads(run_well("bert_jax.evaluate", f"--workdir={workdir}"))
    assert [*results(workdir)] == [10, 20]
    expected = results(workdir)[20]
    assert [found[name] for name in NAMES] == pytest.approx(expected, abs=1e-3)
    arguments = [f"--workdir={workdir}", f"--probes={specs[1]}"]
    one = json.loads(run_well("bert_jax.evaluate", *arguments))
    assert NAMES[0] not in one and one[NAMES[1]] == found[NAMES[1]]


@pytest.mark.slow
def test_two_processes_have_the_results_of_one(tmp_path):
    from tests.launch import test_local

    write_text(tmp_path / "documents.txt")
    specs = probe_data.specs(tmp_path)
    changes = {"phases[0].num_steps": 4, "eval.probes": specs, "eval.every_steps": 2}
    run_well("bert_jax.train", *test_local.arguments(tmp_path, "one", **changes))
    changes |= {"mesh.data": 1, "mesh.fsdp": 2}
    arguments = test_local.arguments(tmp_path, "two", **changes)
    test_local.run_processes(2, *arguments)
    expected, found = results(tmp_path / "one"), results(tmp_path / "two")
    assert [*found] == [*expected] == [2, 4]
    for step in expected:
        assert found[step] == pytest.approx(expected[step], abs=0.1)


@pytest.mark.parametrize(
    ("specs", "content", "message"),
    [
        (("glue:DIR",), {}, "has 'glue:DIR'; a probe must be blimp:DIR or stsb:DIR"),
        (("stsb:",), {}, "has 'stsb:'; a probe must be blimp:DIR"),
        (("blimp:DIR",), {}, "has no .jsonl files; give the directory of BLiMP's data"),
        (("blimp:DIR",), {"good": "a"}, "has no column 'sentence_bad'; its columns"),
        (("blimp:DIR",), {"good": "a", "bad": 3}, "has 3 as a sentence"),
        (("stsb:DIR",), {}, "has no dev.tsv; give the directory of GLUE's STS-B"),
        (("stsb:DIR",), "sentence1\tsentence2\na\tb\n", "has no column 'score'"),
        (
            ("stsb:DIR",),
            "sentence1\tsentence2\tscore\na\tb\t7\n",
            "must be between 0 and the highest score of config.eval.probes has ",
        ),
        (
            ("stsb:DIR", "stsb:DIR"),
            "sentence1\tsentence2\tscore\na\tb\t3\n",
            "a second stsb probe; remove one",
        ),
    ],
)
def test_an_invalid_probe_is_an_error(specs, content, message, tmp_path):
    if isinstance(content, str):
        (tmp_path / "dev.tsv").write_text(content)
    elif content:
        row = {f"sentence_{name}": value for name, value in content.items()}
        (tmp_path / "a.jsonl").write_text(json.dumps(row))
    specs = [spec.replace(":DIR", f":{tmp_path}") for spec in specs]
    with pytest.raises(ConfigError) as error:
        probes.read(specs)
    found = str(error.value).replace(f":{tmp_path}", ":DIR")
    assert message in found and "\n" not in found


def test_an_invalid_spec_ends_a_run_before_anything_is_written(tmp_path):
    write_text(tmp_path / "documents.txt")
    arguments = small_run(tmp_path, **{"eval.probes": "('blimp:/nowhere',)"})
    error = error_of("bert_jax.train", *arguments, f"--workdir={tmp_path / 'run'}")
    assert "has 'blimp:/nowhere': /nowhere has no .jsonl files" in error
    assert [path.name for path in tmp_path.iterdir()] == ["documents.txt"]


def test_a_sample_is_evenly_spaced_and_the_same_in_every_call(tmp_path):
    probe_data.write_blimp(tmp_path, 40)
    everything = probes.read_blimp(tmp_path, "--data", None)
    assert len(everything.good) == len(everything.bad) == 80
    assert everything.terms == ["order"] * 40 + ["agreement"] * 40
    found = probes.read_blimp(tmp_path, "config.eval.probes")
    assert found == probes.read_blimp(tmp_path, "config.eval.probes")
    assert len(found.good) == 2 * probes.PROBED_PAIRS == 20
    assert found.good == everything.good[::4] and found.bad == everything.bad[::4]
    assert probes.read_blimp(tmp_path, "", 50) == everything  # the files are shorter


def test_terms_are_file_names_where_a_file_has_none(tmp_path):
    line = '{"sentence_good": "a b", "sentence_bad": "b a"}\n'
    (tmp_path / "own.jsonl").write_text(line)
    assert probes.read_blimp(tmp_path, "") == Pairs(["a b"], ["b a"], ["own"])


def test_the_margin_is_positive_if_the_good_sentence_scores_higher():
    pairs = Pairs(["aaa", "b", "cc"], ["a", "bb", "dd"], ["x"] * 3)

    def length(texts):
        return np.array([float(len(text)) for text in texts])

    assert probes.margins(pairs, length).tolist() == [2, -1, 0]


PAIRS = [(f"w{i} w{i + 3} w1", f"w{i} w{3 * i}", i * 7 % 11 / 2) for i in range(25)]


@pytest.mark.parametrize("mesh", [(1, 1, 1), slow((2, 2, 1))])
def test_the_correlation_of_cosines_and_labels(mesh, tmp_path):
    """It equals that of features of `inference.load` and SciPy."""
    lines = ["sentence1\tsentence2\tscore"]
    lines += [f"{a}\t{b}\t{min(score, 5.0):.1f}" for a, b, score in PAIRS]
    (tmp_path / "dev.tsv").write_text("\n".join(lines) + "\n")
    examples = probes.read([f"stsb:{tmp_path}"])
    devices = use_mesh(*mesh)
    config = make_config()
    graphdef, params = bert.build(config.model, len(VOCAB), jax.random.key(5))
    (tmp_path / "model").mkdir()
    huggingface_write.write(tmp_path / "model", params, config, TOKENIZER)
    target = Target(config, TOKENIZER, graphdef, devices)
    model = inference.load(tmp_path / "model")
    a, b = (model.features([pair[i] for pair in PAIRS]) for i in range(2))
    cosines = (a * b).sum(1) / ((a * a).sum(1) * (b * b).sum(1)) ** 0.5
    labels = [min(score, 5.0) for _, _, score in PAIRS]
    expected = 100 * scipy.stats.spearmanr(cosines, labels).statistic
    found = probes.prepare(examples, target)(params)
    assert found == {"probe/stsb": pytest.approx(expected, abs=0.1)}
    assert abs(expected) > 1


@pytest.mark.parametrize(
    ("sizes", "accumulation_steps", "rows"),
    [((8,), 1, 4), ((64, 16), 4, 2), ((8192,), 1, probes.MAX_ROWS), ((1,), 1, 1)],
)
def test_a_batch_has_at_most_the_tokens_of_a_microbatch(
    sizes, accumulation_steps, rows
):
    config = make_config(accumulation_steps=accumulation_steps)
    phases = tuple(
        dataclasses.replace(config.phases[0], global_batch_size=size) for size in sizes
    )
    config = dataclasses.replace(config, phases=phases)
    target = Target(config, TOKENIZER, None, jax.sharding.get_mesh())  # type: ignore
    assert target.batch_size == rows
    batching = target.batching(rows)
    assert batching.max_length == config.model.max_position_embeddings
    assert batching.dtype == "float32"
