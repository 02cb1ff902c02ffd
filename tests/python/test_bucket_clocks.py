"""Goal: a bucket works where the clock is off, and where keys expire: the server checks both, and
somebody renews the keys in the profile file meanwhile.

Method: moto's server behind a proxy that refuses requests whose time or key is wrong, as Amazon
does (server_rules.py). All memory is lost before a restore, and every value is compared.
"""

import datetime
import threading

import bucket_server
import pytest
import server_rules
from test_buckets import DIR, assert_is_of, items_of, save_all

from libckpt import errors

ELEMENTS = 1_500_000  # An upload in parts.


@pytest.fixture
def server(monkeypatch, tmp_path):
    yield from bucket_server.serve(bucket_server.start_moto, monkeypatch, tmp_path)


@pytest.fixture
def profile(server, monkeypatch, tmp_path):
    """Writes the one key of the profile file, from which alone all keys come."""
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    path = tmp_path / "credentials"
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(path))
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))

    def write(key):
        aside = tmp_path / "credentials.new"
        aside.write_text(f"[default]\naws_access_key_id = {key}\naws_secret_access_key = secret\n")
        aside.replace(path)

    return write


@pytest.mark.parametrize("hours", [1, -1])
def test_a_clock_that_is_off_by_an_hour_costs_no_save(server, job, ckpt, hours):
    rules = server_rules.Rules(datetime.timedelta(hours=hours))
    server.proxy.rules = rules
    session = job(dir=DIR, save_storage_interval=1, max_ckpt_num=2)
    save_all(session, (1, 2, 3), ELEMENTS)
    session.close()
    assert "RequestTimeTooSkewed" in rules.refused  # The server does check.
    refused_by_daemon = len(rules.refused)
    assert refused_by_daemon < len(server.proxy.seen) / 2  # It has learnt the time.
    assert ckpt("verify", DIR).count("good ") == 2
    assert server.uploads() == []
    ckpt("stop")
    assert_is_of(job(dir=DIR, save_storage_interval=1).restore(), 3, ELEMENTS)


def test_keys_that_expire_are_read_again_from_the_profile(server, profile, job, ckpt):
    rules = server_rules.Rules()
    server.proxy.rules = rules
    profile("first")
    session = job(dir=DIR, save_storage_interval=1)
    save_all(session, (1,), ELEMENTS)
    rules.expired = {"first"}
    rules.on_refusal = lambda code: profile("second")
    save_all(session, (2,), ELEMENTS)
    assert set(rules.refused) == {"ExpiredToken"}
    rules.expired = {"first", "second"}
    rules.on_refusal = lambda code: profile("third")
    save_all(session, (3,), ELEMENTS)
    session.close()
    assert ckpt("verify", DIR).count("good ") == 3
    assert server.uploads() == []
    ckpt("stop")
    assert_is_of(job(dir=DIR, save_storage_interval=1).restore(), 3, ELEMENTS)


def test_keys_that_nobody_renews_cost_saves_until_somebody_does(server, profile, job, ckpt):
    rules = server_rules.Rules()
    server.proxy.rules = rules
    profile("first")
    session = job(dir=DIR, save_storage_interval=1)
    save_all(session, (1,), ELEMENTS)
    refused = threading.Event()
    rules.on_refusal = lambda code: refused.set()
    rules.expired = {"first"}
    session.save(2, items_of(2, ELEMENTS))
    session.wait(2, "committed", 60)
    assert refused.wait(60)
    profile("second")
    for step in range(3, 100):  # Whichever the daemon tries next.
        session.save(step, items_of(step, ELEMENTS))
        try:
            session.wait(step, "durable", 60)
            break
        except errors.CheckpointError:
            continue
    session.close()
    ckpt("stop")
    assert_is_of(job(dir=DIR, save_storage_interval=1).restore(), step, ELEMENTS)
