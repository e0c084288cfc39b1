"""What only an admin may ask: `POST /reset_prefix_cache` and `GET /debug/...`.

An ordinary API key is not enough: all of it reaches across all tenants. Off unless the server has
an admin key, but for what the dashboard looks at: where nobody needs a key at all, there are no
tenants, and everyone may look.
"""

from __future__ import annotations

from fastapi import FastAPI, Request
from starlette.responses import Response

from octavo.cluster.api.answers import ResetAnswer
from octavo.cluster.api.failures import AdminOff
from octavo.cluster.api.front import Front
from octavo.cluster.api.fronts import Fronts
from octavo.cluster.api.overview import overview
from octavo.cluster.api.playbacks import Playbacks
from octavo.cluster.api.streaming import json_response
from octavo.cluster.api.version import octavo_version
from octavo.cluster.picture import Look
from octavo.scheduler.errors import InvalidRequest

ADMIN_PATHS = (
    "/reset_prefix_cache",
    "/debug/blocks",
    "/debug/overview",
    "/debug/look",
    "/debug/simulation",
    "/debug/journal",
    "/debug/journal/sent",
)
_LONGEST_NAME = 512
_FRESH = {"Cache-Control": "no-store"}


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

    @app.get("/debug/overview", include_in_schema=described)
    async def debug_overview(request: Request) -> Response:
        _check_viewer(fronts, request)
        stats = {
            front.settings.served_model_names[0]: front.client.stats() for front in fronts.each
        }
        return json_response(overview(octavo_version(), stats), headers=_FRESH)

    @app.get("/debug/look", include_in_schema=described)
    async def debug_look(request: Request) -> Response:
        _check_viewer(fronts, request)
        front = fronts.of(_text(request, "model") or None)
        picture = await front.client.debug_look(_look(request, front))
        return Response(picture, headers=_FRESH, media_type="application/octet-stream")

    playbacks = Playbacks()

    @app.post("/debug/simulation", include_in_schema=described)
    async def debug_simulation(request: Request) -> Response:
        _check_viewer(fronts, request)
        return _films(await playbacks.scene(request.query_params))

    @app.post("/debug/journal", include_in_schema=described)
    async def debug_journal(request: Request) -> Response:
        _check_viewer(fronts, request)
        front = fronts.of(_text(request, "model") or None)
        part = {
            name: given
            for name, given in request.query_params.items()
            if name not in ("model", "replica")
        }
        return _films(await playbacks.journal(front.client, _replica(request, front), part))

    @app.post("/debug/journal/sent", include_in_schema=described)
    async def debug_sent_journal(request: Request) -> Response:
        _check_viewer(fronts, request)
        return _films(await playbacks.sent(request, fronts.shared.limits.body_seconds))


def _films(made: bytes) -> Response:
    return Response(made, headers=_FRESH, media_type="application/octet-stream")


def _look(request: Request, front: Front) -> Look:
    """What the query asks to see. Raises `InvalidRequest`."""
    tier = _text(request, "tier") or "device"
    if tier not in ("device", "host"):
        raise InvalidRequest("tier", f"tier must be device or host, got {tier!r}")
    return Look(
        replica=_replica(request, front),
        request=_text(request, "request"),
        index=_number(request, "index", 0),
        tier=tier,
        block=_number(request, "block", -1),
    )


def _replica(request: Request, front: Front) -> str:
    """The one that is named, or the first. Raises `InvalidRequest`, also where it is not up: that
    somebody watches one that dies is no reason to log anything."""
    up = [each.replica for each in front.client.stats()]
    replica = _text(request, "replica") or next(iter(up), "")
    if replica not in up:
        raise InvalidRequest(
            "replica", f"replica {replica} is not up; up are: {', '.join(up) or '-'}"
        )
    return replica


def _text(request: Request, name: str) -> str:
    given = request.query_params.get(name, "")
    if len(given) > _LONGEST_NAME:
        raise InvalidRequest(name, f"{name} may have {_LONGEST_NAME} characters, got {len(given)}")
    return given


def _number(request: Request, name: str, default: int) -> int:
    given = request.query_params.get(name)
    if given is None:
        return default
    if not (given.isascii() and given.isdecimal() and len(given) <= 9):
        raise InvalidRequest(
            name, f"{name} must be a number from 0 to 999999999, got {given[:20]!r}"
        )
    return int(given)


def _check_admin(fronts: Fronts, request: Request) -> None:
    """Raises `AdminOff` or `NotAdmin`."""
    if fronts.shared.admin_api_key is None:
        raise AdminOff(f"{request.method} {request.url.path}")
    fronts.door.check_admin(request.headers.get("authorization"))


def _check_viewer(fronts: Fronts, request: Request) -> None:
    """Raises `AdminOff` or `NotAdmin`."""
    if fronts.shared.admin_api_key is not None or fronts.shared.asks_for_key:
        _check_admin(fronts, request)
