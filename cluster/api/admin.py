"""What only an admin may ask: `POST /reset_prefix_cache` and `GET /debug/blocks`.

Off unless the server has an admin key. An ordinary API key is not enough: both routes reach across
all tenants.
"""

from __future__ import annotations

import hmac

from fastapi import FastAPI, Request
from starlette.responses import Response

from octavo.cluster.api.failures import AdminOff, NotAdmin
from octavo.cluster.api.front import Front, bearer_key
from octavo.cluster.api.streaming import json_response

ADMIN_PATHS = ("/reset_prefix_cache", "/debug/blocks")


def add_admin_routes(app: FastAPI, front: Front) -> None:
    """Adds them in any case, so that they can say how to turn them on."""
    described = front.settings.admin_api_key is not None

    @app.post("/reset_prefix_cache", include_in_schema=described)
    async def reset_prefix_cache(request: Request) -> Response:
        _check_admin(front, request)
        replicas = await front.client.reset_prefix_cache()
        return json_response({"reset": True, "replicas": replicas})

    @app.get("/debug/blocks", include_in_schema=described)
    async def debug_blocks(request: Request) -> Response:
        _check_admin(front, request)
        documents = b",".join(await front.client.debug_blocks())  # JSON already, and large
        return Response(b'{"replicas":[' + documents + b"]}", media_type="application/json")


def _check_admin(front: Front, request: Request) -> None:
    """Raises `AdminOff` or `NotAdmin`."""
    key = front.settings.admin_api_key
    if key is None:
        raise AdminOff(f"{request.method} {request.url.path}")
    given = bearer_key(request.headers.get("authorization")) or ""
    if not hmac.compare_digest(given.encode(), key.encode()):
        raise NotAdmin()
