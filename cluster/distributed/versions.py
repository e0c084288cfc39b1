"""Lets a change of one model's arguments replace that model's replicas alone.

Serve gives all deployments of an application one version, a hash of the application's arguments,
and replaces the replicas of all of them when any argument changes. Here each deployment has the
version of what it was made from. Serve has no official way to say so: this relies on the version
being taken from the deployment's own config. Should Serve change that, all is replaced as before.
"""

from __future__ import annotations

from hashlib import blake2b
from typing import Any

import msgspec
from pydantic import PrivateAttr
from ray.serve import Deployment
from ray.serve._private.config import DeploymentConfig


class _Versioned(DeploymentConfig):
    """Keeps its own version, whatever it is told."""

    _own: str = PrivateAttr(default="")

    def __setattr__(self, name: str, value: Any) -> None:
        super().__setattr__(name, self._own if name == "version" else value)


def with_version(deployment: Deployment, made_from: Any) -> Deployment:
    """The deployment, whose replicas are replaced only where `made_from` (plain data) differs."""
    plain = deployment._deployment_config
    config = _Versioned.model_construct(plain.model_fields_set, **dict(plain))
    config._own = blake2b(
        msgspec.json.encode(made_from, order="deterministic"), digest_size=16
    ).hexdigest()
    deployment._deployment_config = config
    return deployment
