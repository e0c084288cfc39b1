"""What only an admin may ask: `POST /reset_prefix_cache` and `GET /debug/blocks`.

Off unless the server has an admin key. An ordinary API key is not enough: both routes reach across
all tenants.
"""

from __future__ import annotations

from fastapi import FastAPI, Request
from starlette.responses import Response

from octavo.cluster.api.answers import ResetAnswer
from octavo.cluster.api.failures import AdminOff
from octavo.cluster.api.fronts import Fronts
from octavo.cluster.api.streaming import json_response

ADMIN_PATHS = ("/reset_prefix_cache", "/debug/blocks")


def add_admin_routes(app: FastAPI, fronts: Fronts) -> None:
    """Adds them in any case, so that they can say how to turn them on."""
    described = fronts.shared.admin_api_key is not None

    @app.post("/reset_prefix_cache", include_in_schema=described)
    async def reset_prefix_cache(request: Request) -> Response:
        _check_admin(fronts, request)
        replicas = sum([await front.client.reset_prefix_cache() for front in fronts.each])
        return json_response(ResetAnswer(replicas=replicas))

    @app.get("/debug/blocks", include_in_schema=described)
    async def debug_blocks(request: Request) -> Response:
        _check_admin(fronts, request)
        documents = [each for front in fronts.each for each in await front.client.debug_blocks()]
        joined = b",".join(documents)  # JSON already, and large
        return Response(b'{"replicas":[' + joined + b"]}", media_type="application/json")


def _check_admin(fronts: Fronts, request: Request) -> None:
    """Raises `AdminOff` or `NotAdmin`."""
    if fronts.shared.admin_api_key is None:
        raise AdminOff(f"{request.method} {request.url.path}")
    fronts.door.check_admin(request.headers.get("authorization"))
