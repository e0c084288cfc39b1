"""Which web pages may call the server: none, unless it was told their origins.

A browser does not show a page the answers of another server than its own. But it sends what a page
asks it to send, and then a page that is merely open could keep a server busy that nobody but its
user can reach. So such a request is refused unread. Programs that are no browsers do not say where
they come from, and are not concerned.
"""

from __future__ import annotations

from collections.abc import Collection

from fastapi import FastAPI
from starlette.datastructures import Headers
from starlette.middleware.cors import CORSMiddleware
from starlette.types import ASGIApp, Receive, Scope, Send

from octavo.cluster.api.failures import ForeignOrigin

EVERY = "*"
_HARMLESS = ("GET", "HEAD", "OPTIONS")


def answer_preflights(app: FastAPI, allowed: Collection[str]) -> None:
    """Lets pages of the `allowed` origins read answers. To be added after all other layers, so
    that errors can be read too. Keys go in a header, so no cookies are taken."""
    if allowed:
        app.add_middleware(
            CORSMiddleware,
            allow_origins=allowed,
            allow_methods=("GET", "POST"),
            allow_headers=(EVERY,),
            expose_headers=("X-Request-Id", "Retry-After"),
        )


class SameOrigin:
    """ASGI middleware. Raises `ForeignOrigin` for what a page of no `allowed` origin sends."""

    def __init__(self, app: ASGIApp, allowed: Collection[str]) -> None:
        self._app = app
        self._allowed = allowed

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["method"] not in _HARMLESS:
            self._check(Headers(scope=scope))
        await self._app(scope, receive, send)

    def _check(self, headers: Headers) -> None:
        site, origin = headers.get("sec-fetch-site"), headers.get("origin")
        if site in ("same-origin", "none"):  # a browser's word, which no page can forge
            return
        here = headers.get("host")
        if site is None and (origin is None or origin.partition("://")[2] == here):
            return
        if origin not in self._allowed and EVERY not in self._allowed:
            raise ForeignOrigin(origin or "null")
