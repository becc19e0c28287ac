"""The file of keys: what it may hold, its errors, and reading it again."""

from __future__ import annotations

import hashlib
import json
import logging
import re
from pathlib import Path

import pytest

from headrace.errors import ConfigError
from headrace.keys.key_file import read_keys
from headrace.keys.key_ring import ANYONE, KeyRing

SECRET = "sk-do-not-show-me"
GOOD = f"""
keys:
  - name: alice
    key: {SECRET}
    requests_per_minute: 60
    tokens_per_minute: 1000
    max_concurrency: 2
    models: [small, large]
    batches: false
  - name: ops@example
    key_sha256: {hashlib.sha256(b"hidden").hexdigest().upper()}
    admin: true
  - name: bob
    key: [old one, new-one]
"""


def written(tmp_path: Path, text: str) -> Path:
    file = tmp_path / "keys.yaml"
    file.write_text(text)
    file.chmod(0o600)
    return file


def test_every_field_is_read(tmp_path):
    alice, ops, bob = read_keys(written(tmp_path, GOOD))
    limits = alice.limits
    assert (alice.name, alice.keys, alice.digests, alice.models) == ("alice", [SECRET], [], ["small", "large"])
    assert (limits.requests_per_minute, limits.tokens_per_minute, limits.max_concurrency) == (60, 1000, 2)
    assert (alice.batches, alice.admin, ops.batches, ops.admin) == (False, False, True, True)
    assert bob.keys == ["old one", "new-one"]
    assert bob.models is None


def test_json_is_yaml(tmp_path):
    (entry,) = read_keys(written(tmp_path, json.dumps({"keys": [{"name": "a", "key": "k"}]})))
    assert entry.name == "a"


def test_the_ring_finds_the_caller_of_each_key(tmp_path):
    ring = KeyRing(None, written(tmp_path, GOOD))
    assert not ring.open
    for token, name in ((SECRET, "alice"), ("hidden", "ops@example"), ("old one", "bob"), ("new-one", "bob")):
        caller = ring.find([b"wrong", token.encode()])
        assert caller is not None
        assert caller.name == name
        assert ring.named(name) is caller
    for wrong in (b"", b"wrong", SECRET.encode()[:-1], hashlib.sha256(b"hidden").hexdigest().encode()):
        assert ring.find([wrong]) is None
    assert ring.find([]) is None
    assert ring.named("") is None
    assert ring.find([ring.internal.encode()]) is ANYONE
    alice = ring.find([SECRET.encode()])
    assert alice is not None
    assert (alice.may_use("small"), alice.may_use("other")) == (True, False)


def test_one_key_beside_a_file(tmp_path):
    ring = KeyRing("single ", written(tmp_path, GOOD))
    assert ring.find([b"single"]) is ANYONE
    assert ring.named("") is ANYONE


def test_a_server_without_keys_is_open():
    ring = KeyRing()
    assert ring.open
    assert ring.find([]) is ANYONE
    assert not ring.reload()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "must be a mapping with `keys`"),
        ("- a", "must be a mapping with `keys`"),
        ("keys: []", "has none"),
        ("keys: [{name: a}]", "a has neither `key` nor `key_sha256`"),
        ("keys: [{key: b}]", r"missing required field `name` - at `\$.keys\[0\]`"),
        ("keys: [{name: a, key: b, limit: 3}]", r"unknown field `limit` - at `\$.keys\[0\]`"),
        ("keys: [{name: a, key: b, requests_per_minute: 0}]", ">= 1"),
        ("keys: [{name: a, key: b, tokens_per_minute: many}]", "Expected `int"),
        ("keys: [{name: a, key: 12}]", "Expected `str | array`, got `int`"),
        ("keys: [{name: a/b, key: c}]", "name"),
        ("keys: [{name: a, key: b}, {name: a, key: c}]", "a stands there twice"),
        (f"keys: [{{name: a, key: {SECRET}}}, {{name: b, key: {SECRET}}}]", "b has a key that stands there already"),
        (f"keys: [{{name: a, key: {SECRET}, key: {SECRET}}}]", "line 1: 'key' stands here twice"),
        (f"keys:\n  - name: a\n  key: {SECRET}\n : {SECRET}", "line 3"),
        (f"keys: [{{name: a, key: '{SECRET}\\x01", "line"),
        ("keys: [{name: a, key_sha256: abc}]", "64 hexadecimal digits"),
        ("keys: [{name: a, key: ''}]", "is empty"),
        ("keys: [{name: a, key: ' b'}]", "begins or ends with a space"),
        ("keys: [{name: a, key: ké}]", r"character 2 of the key of a"),
        ("keys:\n- {name: a, key: b}\n- name: b\n  key: c\n  limit: 3", r" line 3: .*unknown field `limit`"),
        ("keys:\n- {name: a, key: b}\n- name: b\n  key:\n  - 12", r" line 5: Expected `str`"),
        ("keys:\n- {name: a, key: b}\n- {name: b}", r" line 3: b has neither"),
        ("keys:\n- {name: a, key: b}\n- {name: a, key: c}", r" line 3: a stands there twice"),
        ("keys:\n- {name: a, key: b}\n- {name: c, key: ' d'}", r"the key of c in .*, line 3, begins"),
        ("# none\n\nother: 3", r" line 3: .*unknown field `other`"),
        ("keys: &a [*a]", ""),
        ("[" * 5000, ""),
    ],
)
def test_a_wrong_file_is_an_error_that_shows_no_key(text, message, tmp_path):
    file = written(tmp_path, text)
    with pytest.raises(ConfigError, match=f"{re.escape(str(file))}") as caught:
        read_keys(file)
    assert re.search(message, str(caught.value)), caught.value
    assert SECRET not in str(caught.value)


def test_a_file_that_cannot_be_read(tmp_path):
    with pytest.raises(ConfigError, match="No such file"):
        KeyRing(None, tmp_path / "none")
    file = written(tmp_path, "")
    file.write_bytes(b"\xff")
    with pytest.raises(ConfigError, match=r"it is no UTF-8"):
        read_keys(file)


def test_a_file_that_everybody_may_read_is_named_in_the_log(tmp_path, caplog):
    file = written(tmp_path, GOOD)
    read_keys(file)
    assert not caplog.records
    file.chmod(0o644)
    read_keys(file)
    assert "chmod o-r" in caplog.text


def test_reading_again_changes_keys_and_limits(tmp_path, caplog):
    caplog.set_level(logging.INFO)
    file = written(tmp_path, GOOD)
    ring = KeyRing(None, file)
    before = ring.find([SECRET.encode()])
    assert before is not None
    assert before.limiter is not None
    before.limiter.enter(0.0)
    file.write_text(f"keys: [{{name: alice, key: other, max_concurrency: 1}}, {{name: new, key: {SECRET}}}]")
    assert ring.reload()
    assert "2 keys read" in caplog.text
    alice, new = ring.find([b"other"]), ring.find([SECRET.encode()])
    assert alice is not None
    assert new is not None
    assert (alice.name, new.name) == ("alice", "new")
    # The request that began before is still under way, and counts.
    assert alice.limiter is before.limiter
    assert ring.find([b"hidden"]) is None
    assert ring.named("bob") is None


def test_a_wrong_file_keeps_the_keys_as_they_were(tmp_path, caplog):
    file = written(tmp_path, GOOD)
    ring = KeyRing(None, file)
    for text in ("keys: [", "keys: []"):
        file.write_text(text)
        assert not ring.reload()
        assert ring.find([SECRET.encode()]) is not None
    file.unlink()
    assert not ring.reload()
    assert caplog.text.count("the keys stay as they were") == 3
    assert SECRET not in caplog.text
