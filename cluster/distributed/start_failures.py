"""Why a model's replicas do not start, by what Serve's controller says of them.

Where none has ever been up, nobody else can tell an ingress: the replica that failed is gone.
"""

from __future__ import annotations

from typing import Any

from ray import serve
from ray.serve.handle import DeploymentHandle

from octavo.cluster.deployments import reason_in

_FAILED = "REPLICA_STARTUP_FAILED"  # Serve's word, which it does not export


def start_failure(replicas: DeploymentHandle[Any]) -> str | None:
    """One sentence; None where replicas are only slow to come. Blocks; raises what Ray raises."""
    application, deployment = replicas.app_name, replicas.deployment_name
    serving = serve.status().applications.get(application)
    status = serving and serving.deployments.get(deployment)
    if not status or status.status_trigger != _FAILED:
        return None
    return reason_in(status.message).text
