"""Serves a deployment on Ray until asked to stop, and takes all of it down again."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import ssl
import urllib.error
import urllib.request
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, TypeVar

from octavo.cluster.cli.console import Console
from octavo.cluster.cli.plan_deployment import Deployment
from octavo.cluster.deployments import reason_in
from octavo.cluster.distributed.notices import Notice, NoticeBoard
from octavo.cluster.distributed.ray_cluster import RayCluster
from octavo.scheduler.errors import EngineDead, InvalidRequest

APP = "octavo"
POLL_SECONDS = 0.1
TAKE_DOWN_SECONDS = 30.0
FAILED = ("DEPLOY_FAILED", "UNHEALTHY")

T = TypeVar("T")


class RayLaunch:
    """One run. Ray's and Serve's blocking calls are made one after another on a thread of their
    own: signals are heard meanwhile, and nothing is taken down under a call that is under way."""

    def __init__(self, deployment: Deployment, cluster: RayCluster, console: Console) -> None:
        self._deployment = deployment
        self._address = deployment.address
        self._cluster = cluster
        self._console = console
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="octavo-ray")
        self._board: NoticeBoard | None = None
        self._ready = False

    async def until(self, stop: asyncio.Event) -> None:
        """Returns after `stop` was set and everything is down. Raises `InvalidRequest` or
        `EngineDead` where it cannot start; then everything is down too."""
        fatal: asyncio.Future[Notice] = asyncio.get_running_loop().create_future()
        starting = asyncio.create_task(self._start(fatal))
        stopping = asyncio.create_task(stop.wait())
        try:
            first: list[asyncio.Future[Any]] = [starting, stopping, fatal]
            await asyncio.wait(first, return_when=asyncio.FIRST_COMPLETED)
            if fatal.done():
                notice = fatal.result()
                if notice.param:
                    raise InvalidRequest(notice.param, notice.text)
                raise EngineDead(notice.text)
            if starting.done():
                self._ready = True
                listening = starting.result()
                settings = self._deployment.settings
                name = settings.served_model_names[0]
                self._console.banner(self._address, name, settings.asks_for_key)
                await stopping
                listening.cancel()
            self._console.say("stopping")
        except EngineDead as error:
            raise EngineDead(f"{error} (Ray's logs are in {self._cluster.keep_logs()})") from None
        finally:
            starting.cancel()
            try:
                await asyncio.wait_for(self._call(self._take_down), TAKE_DOWN_SECONDS)
            except TimeoutError:
                self._console.error("Ray does not answer; its processes were killed")
                self._cluster.kill()
                os._exit(1)  # its calls cannot be interrupted
            self._thread.shutdown()
            if self._board is not None:
                self._board.close()

    async def _start(self, fatal: asyncio.Future[Notice]) -> asyncio.Task[None]:
        """Returns the task that reads notices, once a request would be answered."""
        config, say = self._deployment.config, self._console.say
        say("starting Ray" if self._cluster.ours else "joining Ray")
        await self._call(self._cluster.start, config)
        import ray
        from ray import serve

        # The console says what matters, in one line each.
        logging.getLogger("ray.serve").setLevel(logging.CRITICAL)
        self._board = NoticeBoard(str(ray.util.get_node_ip_address()))  # type: ignore[no-untyped-call]
        listening = asyncio.create_task(self._read_notices(self._board, fatal))
        say("starting Ray Serve")
        # In a cluster of others, the HTTP proxies are theirs and so is the way in.
        http = {"host": self._address.host, "port": self._address.port}
        if self._cluster.ours:
            http["location"] = "NoServer"
        await self._call(partial(serve.start, http_options=http))
        say(
            f"starting {config.num_replicas} replica(s) of {config.tensor_parallel_size} rank(s) "
            f"on {config.device}"
        )
        await self._call(self._deploy, self._board.address)
        while not await self._call(self._running):
            await asyncio.sleep(POLL_SECONDS)
        while not await self._call(_healthy, f"{self._address.url}/health"):
            await asyncio.sleep(POLL_SECONDS)
        return listening

    def _deploy(self, notices: str) -> None:
        from ray import serve

        from octavo.cluster.distributed.actors import ReplicaSpec
        from octavo.cluster.distributed.serve_app import ServedModel, build_app
        from octavo.workers.actor import model_member

        deployment = self._deployment
        build = partial(model_member, deployment.config.worker_config())
        spec = ReplicaSpec(deployment.config, build, deployment.max_model_len, notices)
        listen = self._address if self._cluster.ours else None
        settings = deployment.settings
        model = ServedModel("Replica", spec.config, lambda: spec, lambda: settings)
        app = build_app([model], listen, notices=notices)
        target = serve.RunTarget(target=app, name=APP, route_prefix="/")
        serve.run_many(
            [target],
            wait_for_ingress_deployment_creation=False,
            wait_for_applications_running=False,
        )

    def _running(self) -> bool:
        from ray import serve

        app = serve.status().applications.get(APP)
        if app is not None and app.status in FAILED:
            told = [reason_in(each.message).text for each in app.deployments.values()]
            reason = "; ".join(filter(None, told)) or app.message
            raise EngineDead(f"Ray Serve could not start the application: {reason}")
        return app is not None and app.status == "RUNNING"

    def _take_down(self) -> None:
        import ray
        from ray import serve

        # Without the check Serve would start a Ray of its own to ask.
        if not self._cluster.ours and ray.is_initialized():
            with contextlib.suppress(Exception):  # a cluster that is gone needs no cleaning
                serve.delete(APP)
        self._cluster.stop()

    async def _read_notices(self, board: NoticeBoard, fatal: asyncio.Future[Notice]) -> None:
        while True:
            notice = await board.receive()
            if notice.level == "fatal" and not self._ready:
                if not fatal.done():
                    fatal.set_result(notice)
            elif notice.level == "fatal":  # a replacement; Serve tries again
                self._console.say(f"{notice.source} cannot start: {notice.text}")
            elif notice.level == "warning" or self._deployment.config.num_replicas > 1:
                self._console.say(f"{notice.source}: {notice.text}")
            else:
                self._console.say(notice.text)

    async def _call(self, function: Callable[..., T], *arguments: Any) -> T:
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._thread, function, *arguments)


async def serve_on_ray(
    deployment: Deployment, cluster: RayCluster, console: Console, stop: asyncio.Event
) -> None:
    """See `RayLaunch.until`. Ray prints a paragraph on standard output for each process that dies;
    the console's one line is enough."""
    with open(os.devnull, "w") as void, contextlib.redirect_stdout(void):
        await RayLaunch(deployment, cluster, console).until(stop)


def _healthy(url: str) -> bool:
    unchecked = ssl.create_default_context()  # the certificate is for a name, not for loopback
    unchecked.check_hostname = False
    unchecked.verify_mode = ssl.CERT_NONE
    try:
        with urllib.request.urlopen(url, timeout=5, context=unchecked) as response:
            return bool(response.status == 200)
    except (urllib.error.URLError, OSError):
        return False
