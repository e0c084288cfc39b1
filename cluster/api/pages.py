"""`/dashboard`: a page for people, which shows what `/debug/...` tells and asks nothing of anyone
else. Its files are read once; they hold nothing secret, so no key is needed to load them."""

from __future__ import annotations

from pathlib import Path

from fastapi import FastAPI
from starlette.exceptions import HTTPException
from starlette.responses import Response

FOLDER = Path(__file__).parent / "dashboard"
TYPES = {
    ".html": "text/html",
    ".css": "text/css",
    ".js": "text/javascript",
    ".svg": "image/svg+xml",
}
POLICY = "; ".join(
    [
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self'",
        "connect-src 'self'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
    ]
)
"""Nothing but the server's own files and answers, and no script or style inside of the page."""

HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-cache",
}


def add_pages(app: FastAPI) -> None:
    """The page itself at `/dashboard`, and what it is made of below."""
    files = {path.name: path.read_bytes() for path in FOLDER.iterdir() if path.suffix in TYPES}

    @app.get("/dashboard", include_in_schema=False)
    async def page() -> Response:
        return _answer("index.html", files["index.html"])

    @app.get("/dashboard/{name}", include_in_schema=False)
    async def part(name: str) -> Response:
        if name not in files:
            raise HTTPException(404, "Not Found")
        return _answer(name, files[name])


def _answer(name: str, body: bytes) -> Response:
    return Response(body, headers=HEADERS, media_type=TYPES[Path(name).suffix])
