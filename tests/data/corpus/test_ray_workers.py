"""Tests of bert_jax.data.corpus.ray_workers; skipped without requirements-ray.txt."""

import json
import os
import signal
import time

import psutil
import pytest

from bert_jax import storage
from bert_jax.data.corpus import build, ray_workers
from bert_jax.errors import ConfigError, CorruptError
from tests.commands import error_of, run, small_run, start, write_text
from tests.corpora import (
    changed,
    elsewhere,
    files,
    interrupted,
    make_config,
    make_documents,
    write_documents,
)

cluster_utils = pytest.importorskip("ray.cluster_utils")
ray = pytest.importorskip("ray")


@pytest.fixture(scope="module")
def bucket():
    """The URL of a bucket of S3 that this process and the cluster can use."""
    import s3fs
    from moto.server import ThreadedMotoServer

    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0)
    server.start()
    with pytest.MonkeyPatch.context() as patch:
        url = f"http://127.0.0.1:{server.get_host_and_port()[1]}"
        patch.setenv("AWS_ENDPOINT_URL", url)
        patch.setenv("AWS_DEFAULT_REGION", "us-east-1")
        for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
            patch.setenv(name, "testing")
        s3fs.S3FileSystem.clear_instance_cache()  # with the server of other tests
        storage.file_system("s3://").mkdir("s3://text-and-corpus")
        yield "s3://text-and-corpus"
    s3fs.S3FileSystem.clear_instance_cache()
    server.stop()


@pytest.fixture(scope="module")
def cluster(bucket):
    """A head without cores, and two nodes of one core, in processes of their own."""
    head = {"num_cpus": 0, "wait": False}
    found = cluster_utils.Cluster(initialize_head=True, head_node_args=head)
    for _ in range(2):
        found.add_node(num_cpus=1, wait=False)
    found.wait_for_nodes(300)
    yield found
    found.shutdown()


@pytest.fixture
def mark(tmp_path):
    (tmp_path / "mark").write_text("this directory")
    return str(tmp_path / "mark")


@pytest.fixture
def config(tmp_path):
    """A config of two sources with different weights, one of which has two files."""
    documents = make_documents(200)
    for number, name in enumerate(("many-[1].txt", "many-2.txt", "b.txt")):
        write_documents(tmp_path / name, documents[60 * number : 60 * number + 80])
    specs = f"text:{tmp_path}/many-*.txt", f"text:{tmp_path}/b.txt"
    return make_config(tmp_path, sources=specs, source_weights=(0.5, 2.5))


def made(task):
    return task


# -------------------------------------------------------------------------- tasks


def add_one(item):
    return os.getpid(), item + 1


def fail(item):
    raise CorruptError(f"{item} is corrupt")


def crash(item):
    return 1 / item


def die(item):
    os.kill(os.getpid(), signal.SIGKILL)


def die_once(path):
    """Kills its own process, unless an earlier attempt has done so."""
    with open(path, "a") as file:
        file.write("x")
    if os.path.getsize(path) == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    return path


def test_every_item_has_one_result(cluster, mark):
    with ray_workers.connected(cluster.address, None, mark) as run_tasks:
        found = list(run_tasks(made, (add_one,), range(50)))
        assert sorted(result for _, result in found) == list(range(1, 51))
        assert os.getpid() not in {pid for pid, _ in found}
        assert list(run_tasks(made, (add_one,), [])) == []


def test_the_task_of_a_killed_process_is_repeated(cluster, mark, tmp_path):
    paths = [str(tmp_path / str(i)) for i in range(3)]
    with ray_workers.connected(cluster.address, 2, mark) as run_tasks:
        assert sorted(run_tasks(made, (die_once,), paths)) == paths
    assert [os.path.getsize(path) for path in paths] == [2, 2, 2]


@pytest.mark.parametrize(
    "task, kind, message",
    [
        (fail, CorruptError, "^0 is corrupt$"),
        (crash, ZeroDivisionError, "return 1 / item"),  # with its traceback
        (die, ConfigError, "^Ray cannot run a task .*completed work is kept"),
    ],
)
def test_a_task_that_fails_ends_the_work(
    cluster, mark, task, kind, message, monkeypatch
):
    monkeypatch.setattr(ray_workers, "MAX_RETRIES", 0)
    with ray_workers.connected(cluster.address, None, mark) as run_tasks:
        with pytest.raises(kind, match=message):
            list(run_tasks(made, (task,), [0, 0]))


def test_a_cluster_with_a_token_needs_one(tmp_path):
    write_text(tmp_path / "documents.txt")
    arguments = [x for x in small_run(tmp_path) if x.startswith("--config")]
    environment = {"RAY_AUTH_MODE": "token", "HOME": str(tmp_path)}
    error = error_of("bert_jax.prepare", *arguments, "--ray=auto", **environment)
    assert "--ray=auto cannot be used" in error


@pytest.mark.parametrize("address", ["nowhere", "127.0.0.1:1", "127.0.0.1:x"])
def test_no_cluster_at_the_address(address, mark):
    with pytest.raises(ConfigError, match=f"^--ray={address} cannot be used .* local"):
        with ray_workers.connected(address, None, mark):
            pass


def test_a_corpus_on_a_disk_of_one_node(cluster, config, tmp_path):
    """A path through a file descriptor leads to the directory in this process only."""
    directory = os.open(tmp_path, os.O_RDONLY)
    os.dup2(directory, 900)
    config = changed(config, "data", corpus_dir="/proc/self/fd/900/corpus")
    with pytest.raises(
        ConfigError, match="/900/corpus/unfinished on .* is not the dir"
    ):
        build.prepare(config, ray_address=cluster.address)
    assert not (tmp_path / "corpus").exists()
    os.close(900)
    os.close(directory)


def test_without_ray(monkeypatch, config):
    monkeypatch.setattr(ray_workers, "ray", None)
    with pytest.raises(ConfigError, match="^--ray=auto needs .* pip install ray$"):
        build.prepare(config, ray_address="auto")


def test_a_scratch_directory_is_an_error(tmp_path):
    write_text(tmp_path / "documents.txt")
    flags = "--ray=auto", "--scratch_dir=scratch"
    error = error_of("bert_jax.prepare", *small_run(tmp_path), *flags)
    assert "scratch: with --ray, temporary files are in" in error
    assert os.listdir(tmp_path) == ["documents.txt"]


# -------------------------------------------------------------------------- corpora


@pytest.mark.parametrize("values", [{}, {"stream": True, "num_shards": 1}])
def test_the_corpus_equals_that_of_one_machine(cluster, config, values):
    config = changed(config, "data", **{"num_streams": 1} | values)
    config = changed(config, "tokenizer", vocab_file="", vocab_size=90)
    build.prepare(config, 1)
    build.prepare(elsewhere(config), ray_address=cluster.address)
    expected = files(config.data.corpus_dir)
    assert files(elsewhere(config).data.corpus_dir) == expected
    assert json.loads(expected["manifest.json"])["documents"]["repeated"] > 0


def test_text_and_corpus_in_a_bucket(cluster, config, bucket, tmp_path, monkeypatch):
    for path in tmp_path.glob("*.txt"):
        storage.write(f"{bucket}/text/{path.name}", path.read_bytes())
    sources = f"text:{bucket}/text/many-*.txt", f"text:{bucket}/text/b.txt"
    config = changed(config, "data", sources=sources)
    build.prepare(config, 1)
    monkeypatch.setattr(build, "RUN_BYTES", 2000)
    remote = changed(config, "data", corpus_dir=f"{bucket}/corpus")
    with interrupted():
        build.prepare(remote, ray_address=cluster.address)
    before = modified(f"{bucket}/corpus")
    assert "train-00001-of-00002" in before and any("/run-" in x for x in before)
    build.prepare(remote, ray_address=cluster.address)
    after = modified(f"{bucket}/corpus")
    assert {name for name in after if after[name] == before.get(name)} == {
        name for name in after if "-of-" in name
    }
    found = {name: storage.read(f"{bucket}/corpus/{name}") for name in after}
    assert found == files(config.data.corpus_dir)


def modified(directory):
    names = storage.files(directory)
    return {name: storage.stat(f"{directory}/{name}").changed_ns for name in names}


def test_the_bad_lines_of_all_files_are_reported(cluster, config, tmp_path):
    for name in ("many-2.txt", "b.txt"):
        text = (tmp_path / name).read_bytes()
        (tmp_path / name).write_bytes(text + b"\n\xff\n")
    with pytest.raises(ConfigError, match="^2 lines or files") as caught:
        build.prepare(config, ray_address=cluster.address)
    assert "many-2.txt:" in str(caught.value) and "b.txt:" in str(caught.value)
    assert not os.path.exists(config.data.corpus_dir)


@pytest.mark.slow
@pytest.mark.parametrize("victim", ["worker", "node", "driver"])
def test_whatever_is_killed_the_corpus_is_the_same(cluster, tmp_path, victim):
    for i in range(40):
        write_text(tmp_path / f"{i}.txt", 200 + i)
    arguments = small_run(tmp_path, **{"data.num_shards": 8})
    assert run("bert_jax.prepare", *arguments, "--workers=2").returncode == 0
    corpus_dir = tmp_path / "ray"
    command = [*arguments, f"--config.data.corpus_dir={corpus_dir}"]
    command.append(f"--ray={cluster.address}")
    node = cluster.add_node(num_cpus=1)
    driver = start("bert_jax.prepare", *command)
    while not list(corpus_dir.glob("*-of-*")):
        assert driver.poll() is None, driver.communicate()
        time.sleep(0.05)
    if victim == "node":
        cluster.remove_node(node, allow_graceful=False)
    elif victim == "driver":
        driver.kill()
        driver.communicate()
        driver = start("bert_jax.prepare", *command)
    else:
        busy = [
            process
            for process in psutil.process_iter(["name"])
            if "_call" in process.info["name"]
        ]
        busy[0].kill()
    stdout, stderr = driver.communicate(timeout=300)
    assert driver.returncode == 0, stderr
    assert "tokens to train on" in stdout
    assert files(corpus_dir) == files(tmp_path / "corpus")
    if victim != "node":
        cluster.remove_node(node)
