"""Which web pages may call: none, unless the server was told."""

from __future__ import annotations

from pathlib import Path

import httpx
import pytest

from octavo.scheduler.errors import InvalidRequest
from tests.cluster.calls import Connect, complete, error_of
from tests.cluster.scripted import ScriptedEngine, says
from tests.cluster.serving import settings_for

PAGE = "https://chat.example.com"
PREFLIGHT = {
    "Origin": PAGE,
    "Access-Control-Request-Method": "POST",
    "Access-Control-Request-Headers": "authorization,content-type",
}


def ask(http: httpx.Client, **headers: str) -> httpx.Response:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return http.post("/v1/completions", json={"prompt": "x"}, headers=named)


def allows(answer: httpx.Response) -> str | None:
    origin: str | None = answer.headers.get("access-control-allow-origin")
    return origin


def test_no_page_may_call_unless_it_is_named(connected: Connect) -> None:
    engine = ScriptedEngine(says("x"))
    with connected(engine) as http:
        preflight = http.options("/v1/completions", headers=PREFLIGHT)
        error_of(preflight, 405)
        for headers in (
            {"Origin": PAGE},
            {"Origin": "null"},
            {"Origin": PAGE, "Sec_Fetch_Site": "cross-site"},
            {"Sec_Fetch_Site": "same-site"},
        ):
            refused = ask(http, **headers)
            assert "--allowed-origins" in error_of(refused, 403)
            assert allows(preflight) is allows(refused) is None
        assert not engine.seen, "refused unread"
        assert allows(http.get("/v1/models", headers={"Origin": PAGE})) is None


def test_programs_and_the_servers_own_pages_may_call(connected: Connect) -> None:
    with connected(ScriptedEngine(says("x"))) as http:
        host = f"{http.base_url.host}:{http.base_url.port}"
        assert complete(http).status_code == 200
        assert ask(http, Origin=f"http://{host}").status_code == 200
        behind_a_proxy = {"Origin": PAGE, "Sec_Fetch_Site": "same-origin"}
        assert ask(http, **behind_a_proxy).status_code == 200
        assert ask(http, Sec_Fetch_Site="none").status_code == 200


def test_a_page_that_is_named_may_call_and_read_errors_too(connected: Connect) -> None:
    engine = ScriptedEngine(says("x"))
    with connected(engine, allowed_origins=(PAGE,), api_keys=("k",)) as http:
        preflight = http.options("/v1/completions", headers=PREFLIGHT)
        assert preflight.status_code == 200 and allows(preflight) == PAGE
        assert "authorization" in preflight.headers["access-control-allow-headers"]
        refused = ask(http, Origin=PAGE, Sec_Fetch_Site="cross-site")
        assert refused.status_code == 401 and allows(refused) == PAGE
        answer = ask(http, Origin=PAGE, Sec_Fetch_Site="cross-site", Authorization="Bearer k")
        assert answer.status_code == 200 and allows(answer) == PAGE
        assert "X-Request-Id" in answer.headers["access-control-expose-headers"]
        assert "access-control-allow-credentials" not in answer.headers
        other = ask(http, Origin="https://evil.example", Authorization="Bearer k")
        assert other.status_code == 403 and allows(other) is None
        wrong = http.options("/v1/completions", headers={**PREFLIGHT, "Origin": "https://evil"})
        assert wrong.status_code == 400 and allows(wrong) is None


def test_a_star_is_every_page(connected: Connect) -> None:
    with connected(ScriptedEngine(says("x")), allowed_origins=("*",)) as http:
        answer = ask(http, Origin="https://any.example", Sec_Fetch_Site="cross-site")
        assert answer.status_code == 200 and allows(answer) == "*"


@pytest.mark.parametrize("origin", ["chat.example.com", "https://a/path", "", "https://a, b"])
def test_an_origin_that_is_none_is_refused(origin: str, tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match="origins as a browser names them") as caught:
        settings_for(tmp_path, allowed_origins=(origin,))
    assert repr(origin) in caught.value.message
