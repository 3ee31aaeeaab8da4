"""Tests of locks in buckets."""

import json
import os
import subprocess
import sys
import time

import pytest

from bert_jax import storage
from bert_jax.storage import lease
from bert_jax.storage.lease import Lease

DIRECTORY = "gs://b/run/lock"


@pytest.fixture(autouse=True)
def short_leases(bucket, monkeypatch):
    monkeypatch.setattr(lease, "LEASE_SECS", 1.0)
    monkeypatch.setattr(lease, "RENEWAL_SECS", 60.0)
    yield
    lease.release_all()


def holder(**changes):
    """Returns the content of a lock that this process holds, with changes."""
    lock = Lease(DIRECTORY, "x")
    return json.dumps(json.loads(lock._content()) | changes).encode()


def test_the_second_process_gets_the_name_of_the_first():
    first, second = Lease(DIRECTORY, "x"), Lease(DIRECTORY, "x")
    assert first.acquire() is None and first.check() is None
    assert f"process {os.getpid()} on " in (second.acquire() or "")
    first.release()
    assert second.acquire() is None and storage.names(DIRECTORY) == ["2"]


@pytest.mark.slow
def test_a_late_renewal_of_a_released_lock_takes_it_from_nobody():
    first, second, third = (Lease(DIRECTORY, "x") for _ in range(3))
    assert first.acquire() is None
    first.release()
    late = f"{DIRECTORY}/1", first._content()
    assert second.acquire() is None
    storage.write(*late)
    assert second.check() is None and first.check()
    second.release()
    storage.write(*late)
    assert first.check() and third.acquire() is None and third.check() is None


def test_a_process_that_pauses_before_it_creates_its_lock_notices_the_next(monkeypatch):
    """Meanwhile, a second one takes and releases the number, and a third runs."""
    paused, second, third = (Lease(DIRECTORY, "x") for _ in range(3))
    create = storage.create

    def pause(path, data):
        monkeypatch.setattr(storage, "create", create)
        assert second.acquire() is None
        second.release()
        assert third.acquire() is None
        return create(path, data)

    monkeypatch.setattr(storage, "create", pause)
    assert f"process {os.getpid()} on " in (paused.acquire() or "")
    assert third.check() is None and storage.names(DIRECTORY) == ["2"]


def test_a_lock_that_was_taken_is_noticed_before_a_commit(monkeypatch, capsys):
    lost = []
    monkeypatch.setattr(os, "_exit", lost.append)
    lock = Lease(DIRECTORY, "x")
    assert lock.acquire() is None
    lease.confirm_all()
    assert not lost
    storage.write(f"{DIRECTORY}/2", holder(host="other", machine="other"))
    lease.confirm_all()
    (message,) = capsys.readouterr().err.splitlines()
    assert lost and "on other has taken the lock in gs://b/run/lock" in message


def test_the_lock_of_a_process_that_has_ended_here_is_taken_at_once(capsys):
    done = subprocess.Popen([sys.executable, "-c", ""])
    done.wait()
    storage.write(f"{DIRECTORY}/7", holder(process=done.pid))
    assert Lease(DIRECTORY, "x").acquire() is None
    assert storage.names(DIRECTORY) == ["8"] and not capsys.readouterr().err


def test_the_lock_of_another_host_is_taken_when_it_expires(capsys):
    storage.write(f"{DIRECTORY}/7", holder(host="other", machine="other"))
    started = time.monotonic()
    assert Lease(DIRECTORY, "x").acquire() is None
    assert 1 <= time.monotonic() - started and storage.names(DIRECTORY) == ["8"]
    assert "waiting up to 1 s for the lock of process" in capsys.readouterr().err


def test_a_lock_that_is_renewed_or_taken_is_not_taken():
    storage.write(f"{DIRECTORY}/7", holder(host="other", machine="other"))

    class Renewed(Lease):
        def _newest(self):
            storage.write(
                f"{DIRECTORY}/7",
                holder(host="other", machine="other", renewals=time.time()),
            )
            return super()._newest()

    assert " on other" in (Renewed(DIRECTORY, print).acquire() or "")
    two = Lease(DIRECTORY, "x"), Lease(DIRECTORY, "x")
    storage.remove(f"{DIRECTORY}/7")
    taken = [lock.acquire() for lock in two]
    assert taken[0] is None and taken[1]


@pytest.mark.slow
def test_it_is_renewed_until_another_process_takes_it(bucket, monkeypatch, capsys):
    monkeypatch.setattr(lease, "RENEWAL_SECS", 0.2)
    lost = []
    monkeypatch.setattr(os, "_exit", lost.append)
    lock = Lease(DIRECTORY, "x")
    assert lock.acquire() is None
    before = bucket.objects["b/run/lock/1"]
    bucket.faults = {"POST .*lock": [403]}  # one renewal fails
    deadline = time.monotonic() + 20
    while bucket.objects["b/run/lock/1"] == before:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    assert not lost
    storage.write(f"{DIRECTORY}/2", holder(host="other", machine="other"))
    while not lost:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    assert "on other has taken the lock" in capsys.readouterr().err and lock.check()
    lock.release()
    assert "b/run/lock/2" in bucket.objects  # it is not ours to remove
