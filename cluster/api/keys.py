"""Who may call: where keys come from, and whose key a call brings.

Keys are given, or stand in a file that may change while the server runs, or come from the
environment. Never from what Serve shows. A key is compared by its digest with every known one, each
in constant time, so that timing tells neither a key nor its length.
"""

from __future__ import annotations

import hmac
import logging
import os
import time
from collections.abc import Callable, Sequence
from hashlib import blake2b
from typing import NamedTuple

from octavo.cluster.api.failures import NotAdmin, Unauthorized
from octavo.scheduler.errors import InvalidRequest

KEYS_VARIABLE = "OCTAVO_API_KEY"
KEY_FILE_VARIABLE = "OCTAVO_API_KEY_FILE"
ADMIN_KEY_VARIABLE = "OCTAVO_ADMIN_API_KEY"
LOOK_SECONDS = 1.0  # between two looks at the file, so how long a revoked key may still be taken

_log = logging.getLogger(__name__)


class Keys(NamedTuple):
    """The callers' keys, the admin's, and the file that has more of the callers'."""

    callers: tuple[str, ...]
    admin: str | None
    file: str | None


def resolve_keys(
    keys: Sequence[str] = (), admin: str | None = None, file: str | None = None
) -> Keys:
    """Each as given or else from the environment, where several callers' keys are separated by
    commas or blanks. Raises `InvalidRequest` for an empty key, for one that would be both, and for
    a file that cannot be used."""
    if not keys and (listed := os.environ.get(KEYS_VARIABLE)):
        keys = listed.replace(",", " ").split() or [""]
    if admin is None and (admin := os.environ.get(ADMIN_KEY_VARIABLE) or None) is not None:
        admin = admin.strip()
    file = file or os.environ.get(KEY_FILE_VARIABLE) or None
    for name, given in (("api_key", keys), ("admin_api_key", [admin])):
        if any(key is not None and not key.strip() for key in given):
            raise InvalidRequest(name, f"{name} must not be empty; leave it out for none")
    if admin in keys:
        raise InvalidRequest("admin_api_key", "admin_api_key must differ from every --api-key")
    if file is not None:
        file = os.path.abspath(file)  # an ingress has another working directory
        digests = KeyFile(file).digests()
        if admin is not None and _digest(admin.encode()) in digests:
            raise InvalidRequest(
                "admin_api_key", f"admin_api_key must differ from every key in {file}"
            )
    return Keys(tuple(keys), admin, file)


class KeyFile:
    """One key a line; empty lines and those that begin with # are passed over. Raises
    `InvalidRequest` where it cannot be read or has no key."""

    def __init__(self, path: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._path = path
        self._clock = clock
        self._readable = True
        try:
            self._digests = self._read()
        except (OSError, UnicodeDecodeError) as error:
            raise InvalidRequest(
                "api_key_file", f"api_key_file {path} cannot be read: {_reason(error)}"
            ) from None
        if not self._digests:
            raise InvalidRequest(
                "api_key_file", f"api_key_file {path} has no key; write one key a line into it"
            )

    def digests(self) -> list[bytes]:
        """Of the keys that are in the file now, or were a second ago. None at all once it is empty,
        and those it had where it cannot be read: whoever replaces it may not have done yet."""
        if self._clock() - self._looked >= LOOK_SECONDS:
            self._read_again()
        return self._digests

    def _read_again(self) -> None:
        before = self._digests
        try:
            if self._look() != self._marks or not self._readable:
                self._digests = self._read()
            self._readable = True
        except (OSError, UnicodeDecodeError) as error:
            if self._readable:
                _log.warning(
                    "%s cannot be read (%s); the keys it had still count",
                    self._path,
                    _reason(error),
                )
            self._readable = False
        if self._digests != before:
            _log.warning("%s has changed; keys in it: %d", self._path, len(self._digests))

    def _read(self) -> list[bytes]:
        self._marks = self._look()
        with open(self._path, encoding="utf-8") as file:
            lines = [line.strip() for line in file]
        return [_digest(line.encode()) for line in lines if line and not line.startswith("#")]

    def _look(self) -> tuple[int, ...]:
        """What differs where the content does."""
        self._looked = self._clock()
        found = os.stat(self._path)
        return found.st_mtime_ns, found.st_size, found.st_ino


class Doorkeeper:
    """Knows the keys of one server. Raises `InvalidRequest` where its file cannot be used."""

    def __init__(self, keys: Keys, clock: Callable[[], float] = time.monotonic) -> None:
        self._given = [_digest(key.encode()) for key in keys.callers]
        self._file = KeyFile(keys.file, clock) if keys.file is not None else None
        self._admin = _digest(keys.admin.encode()) if keys.admin is not None else None

    def tenant(self, authorization: str | None) -> str:
        """The caller's API key, "" where none are set. Raises `Unauthorized`."""
        if not self._given and self._file is None:
            return ""
        key = _bearer_key(authorization)
        known = self._given + (self._file.digests() if self._file is not None else [])
        if key is None or not _is_one_of(key, known) or self._is_admin(key):
            raise Unauthorized()
        return key.decode("latin-1")

    def check_admin(self, authorization: str | None) -> None:
        """Raises `NotAdmin`."""
        key = _bearer_key(authorization)
        if key is None or not self._is_admin(key):
            raise NotAdmin()

    def _is_admin(self, key: bytes) -> bool:
        return self._admin is not None and _is_one_of(key, [self._admin])


def _bearer_key(authorization: str | None) -> bytes | None:
    """The key of an `Authorization` header as it was sent, None where it holds none."""
    scheme, _, key = (authorization or "").partition(" ")
    return key.strip().encode("latin-1") if scheme.lower() == "bearer" else None


def _is_one_of(key: bytes, known: list[bytes]) -> bool:
    digest = _digest(key)
    return sum(hmac.compare_digest(digest, each) for each in known) > 0  # all of them, always


def _digest(key: bytes) -> bytes:
    return blake2b(key, digest_size=32).digest()


def _reason(error: OSError | UnicodeDecodeError) -> str:
    return (error.strerror or str(error)).lower() if isinstance(error, OSError) else "no UTF-8"
