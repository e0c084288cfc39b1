"""Why a model's replicas do not start, by what Serve's controller says of them.

Where none has ever been up, nobody else can tell an ingress: the replica that failed is gone.
"""

from __future__ import annotations

from typing import Any

from ray import serve
from ray.serve.handle import DeploymentHandle
from ray.serve.schema import DeploymentStatusTrigger

from octavo.cluster.deployments import reason_in


def start_failure(replicas: DeploymentHandle[Any]) -> str | None:
    """One sentence; None where replicas are only slow to come. Blocks; raises what Ray raises."""
    application = serve.status().applications.get(replicas.app_name)
    deployment = application and application.deployments.get(replicas.deployment_name)
    if (
        not deployment
        or deployment.status_trigger != DeploymentStatusTrigger.REPLICA_STARTUP_FAILED
    ):
        return None
    return reason_in(deployment.message).text
