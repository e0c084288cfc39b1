"""Where API keys come from: what was given, or else the environment. Never a file that others
read, nor the settings that Serve shows."""

from __future__ import annotations

import os
from collections.abc import Sequence

from octavo.scheduler.errors import InvalidRequest

KEYS_VARIABLE = "OCTAVO_API_KEY"
ADMIN_KEY_VARIABLE = "OCTAVO_ADMIN_API_KEY"


def resolve_keys(
    keys: Sequence[str] = (), admin: str | None = None
) -> tuple[tuple[str, ...], str | None]:
    """The callers' keys and the admin's, as given or else from the environment, where several
    callers' keys are separated by commas or blanks. Raises `InvalidRequest` for an empty key and
    for one that would be both."""
    if not keys and (listed := os.environ.get(KEYS_VARIABLE)):
        keys = listed.replace(",", " ").split() or [""]
    if admin is None and (admin := os.environ.get(ADMIN_KEY_VARIABLE) or None) is not None:
        admin = admin.strip()
    for name, given in (("api_key", keys), ("admin_api_key", [admin])):
        if any(key is not None and not key.strip() for key in given):
            raise InvalidRequest(name, f"{name} must not be empty; leave it out for none")
    if admin in keys:
        raise InvalidRequest("admin_api_key", "admin_api_key must differ from every --api-key")
    return tuple(keys), admin
