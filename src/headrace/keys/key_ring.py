"""The keys that open a server, and who sends them."""

from __future__ import annotations

import hashlib
import hmac
import logging
import secrets
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from headrace.errors import ConfigError
from headrace.keys.key_file import KeyEntry, check_key, read_keys
from headrace.keys.limiter import Limiter

__all__ = ["ANYONE", "Caller", "KeyRing"]

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Caller:
    """The client behind a request."""

    name: str = ""
    """Empty: the client of a server with one key, or without keys."""
    limiter: Limiter | None = None
    models: frozenset[str] | None = None
    batches: bool = True
    admin: bool = True
    salt: str = ""
    """Separates its cached prefixes from those of others, who cannot guess it; empty: they are shared."""

    def may_use(self, model: str) -> bool:
        return self.models is None or model in self.models


ANYONE = Caller()


class KeyRing:
    """Finds the caller of a key in constant time: what is looked up is a hash with a secret of this process, so how
    long it takes tells nothing about a key. Not for several threads at once."""

    def __init__(self, single: str | None = None, file: Path | None = None) -> None:
        """`single`: a key without a name and without limits. Raises ConfigError for a key that is empty or that cannot
        stand in an HTTP header, and for a file that cannot be read."""
        self._salt = secrets.token_bytes(32)
        self._single, self._file = None if single is None else single.strip(), file
        if self._single is not None:
            check_key(self._single, "the API key")
        self.internal = secrets.token_urlsafe(32)
        """A key of this process, for its requests to itself."""
        self._callers: dict[str, Caller] = {}
        self._by_hash: dict[bytes, tuple[bytes, Caller]] = {}
        self._load([] if file is None else read_keys(file))

    @property
    def open(self) -> bool:
        """True if no key is needed."""
        return self._single is None and self._file is None

    @property
    def has_file(self) -> bool:
        return self._file is not None

    def find(self, tokens: Iterable[bytes]) -> Caller | None:
        """The caller that sends these keys; None if none of them is valid, and one is needed."""
        if self.open:
            return ANYONE
        found = None
        for token in tokens:
            hashed = self._hash(hashlib.sha256(token).digest())
            known, caller = self._by_hash.get(hashed, (bytes(32), ANYONE))
            if hmac.compare_digest(known, hashed):
                found = found or caller
        return found

    def named(self, name: str) -> Caller | None:
        """The caller of this name; None if its key is there no longer."""
        if name == "":
            return ANYONE if self.open or self._single is not None else None
        return self._callers.get(name)

    def reload(self) -> bool:
        """Read the file again. If it is wrong, the keys stay as they were, and the log says why."""
        if self._file is None:
            return False
        try:
            entries = read_keys(self._file)
        except ConfigError as error:
            _log.error("the keys stay as they were: %s", error)
            return False
        self._load(entries)
        _log.info("%d keys read from %s", len(entries), self._file)
        return True

    def _load(self, entries: list[KeyEntry]) -> None:
        callers, by_hash = dict[str, Caller](), dict[bytes, tuple[bytes, Caller]]()
        now = time.monotonic()
        for entry in entries:
            digests = [hashlib.sha256(key.encode()).digest() for key in entry.keys]
            digests += map(bytes.fromhex, entry.digests)
            caller = callers[entry.name] = self._caller(entry, digests[0], now)
            for digest in digests:
                hashed = self._hash(digest)
                by_hash[hashed] = (hashed, caller)
        for key in (self._single, None if self.open else self.internal):
            if key is not None:
                hashed = self._hash(hashlib.sha256(key.encode()).digest())
                by_hash[hashed] = (hashed, ANYONE)
        self._callers, self._by_hash = callers, by_hash

    def _caller(self, entry: KeyEntry, digest: bytes, now: float) -> Caller:
        """`digest`: of its first key."""
        before = self._callers.get(entry.name)
        limiter = Limiter(entry.limits, now) if before is None or before.limiter is None else before.limiter
        limiter.set_limits(entry.limits, now)
        models = None if entry.models is None else frozenset(entry.models)
        # The same in every process that has the file, as blocks on disk outlast one.
        salt = hashlib.blake2b(digest, digest_size=16, person=b"cache salt").hexdigest() if entry.private_cache else ""
        return Caller(entry.name, limiter, models, entry.batches, entry.admin, salt)

    def _hash(self, digest: bytes) -> bytes:
        return hashlib.blake2b(digest, digest_size=32, key=self._salt).digest()
