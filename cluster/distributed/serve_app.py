"""The two Serve deployments: `Replica`, the front of one engine, and `Ingress`, the HTTP API.

A replica forwards; its engine is a child actor. When the engine is dead the replica ends itself,
and Serve starts a new one in a new placement group: a broken group is never patched up. What it
served goes on elsewhere (`octavo.cluster.failover`).
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import ray
from ray import serve
from ray.exceptions import RayActorError
from ray.serve import Application
from ray.serve.config import RequestRouterConfig
from ray.serve.handle import DeploymentHandle
from ray.serve.schema import LoggingConfig

from octavo.cluster.api.server import HttpServer
from octavo.cluster.api.settings import Address, FrontSettings
from octavo.cluster.api.version import octavo_version
from octavo.cluster.arguments import DRAIN_SECONDS, INGRESS
from octavo.cluster.autoscaling import Autoscaling
from octavo.cluster.config import EngineConfig
from octavo.cluster.distributed.actors import DONE, FAREWELL_SECONDS, ReplicaSpec, SchedulerActor
from octavo.cluster.distributed.notices import Notices
from octavo.cluster.distributed.placement import (
    REPLICA_CPUS,
    SCHEDULER_CPUS,
    actor_options,
    bundles,
)
from octavo.cluster.distributed.remote import RemoteClient
from octavo.cluster.distributed.router import ROUTER
from octavo.cluster.distributed.serve_policy import serve_autoscaling
from octavo.cluster.distributed.versions import with_version
from octavo.cluster.distributed.wire import decode_error, encode_error
from octavo.cluster.failover import Failover
from octavo.cluster.picture import Look
from octavo.cluster.playback.child import play_recorded
from octavo.cluster.playback.recorded import Part
from octavo.cluster.routing.route import Route
from octavo.scheduler.errors import EngineDead, InvalidRequest, OctavoError

HEALTH_SECONDS = 2.0
HEALTH_TIMEOUT_SECONDS = 6.0
SCHEDULER_DIED = "the scheduler's process died"
INGRESS_STREAMS = 20_000
INGRESS_DRAIN_SECONDS = 600.0  # for streams that go through an ingress that is to be replaced
ENGINE_CALLS = 100_000  # the engine's own queue is the bound, see `max_num_queued_reqs`


class Replica:
    """Front of one engine."""

    _scheduler: Any = None
    _mourner: asyncio.Task[None] | None = None  # none before it is up

    async def __init__(self, make_spec: Callable[[], ReplicaSpec]) -> None:  # type: ignore[misc]
        spec = await asyncio.to_thread(make_spec)
        name = self._name = serve.get_replica_context().replica_id.unique_id
        self._notices = Notices(spec.notices, f"replica {name}")
        self._journal = spec.config.journal_settings(name)
        group = ray.util.get_current_placement_group()
        options = actor_options({"CPU": SCHEDULER_CPUS}, group, 0)
        actor: Any = ray.remote(SchedulerActor)
        options["max_concurrency"] = ENGINE_CALLS
        worker_id = ray.get_runtime_context().get_worker_id()
        self._scheduler = actor.options(**options).remote(spec, name, group, worker_id)
        outcome = await self._scheduler.start.remote()
        if outcome != DONE:
            error = decode_error(outcome)
            param = error.param if isinstance(error, InvalidRequest) else ""
            self._notices.say(str(error), "fatal", param)
            self._notices.close()
            raise error
        self._mourner = asyncio.create_task(self._end_with_engine())

    async def generate(self, request: bytes, reply_to: str, route: Route) -> bytes:
        """See `SchedulerActor.generate`. Ends when the request does. The router obeys `route`."""
        call = self._scheduler.generate.remote(request, reply_to, route.seen_by(self._name))
        try:
            result: bytes = await call
        except asyncio.CancelledError:
            ray.cancel(call)
            raise
        except RayActorError:
            return encode_error(EngineDead(SCHEDULER_DIED, self._name))
        return result

    async def attach(self, reply_to: str, unknown: list[str]) -> None:
        """See `SchedulerActor.attach`."""
        await self._scheduler.attach.remote(reply_to, unknown)

    async def abort(self, samples: list[tuple[str, int]]) -> None:
        """See `SchedulerActor.abort`."""
        await self._scheduler.abort.remote(samples)

    async def reset_prefix_cache(self) -> None:
        """See `Engine.reset_prefix_cache`."""
        await self._scheduler.reset_prefix_cache.remote()

    async def debug_blocks(self) -> bytes:
        """See `Engine.debug_blocks`."""
        document: bytes = await self._scheduler.debug_blocks.remote()
        return document

    async def debug_look(self, look: Look) -> bytes:
        """See `Engine.debug_look`; nothing where another replica is meant."""
        if look.replica != self._name:
            return b""
        picture: bytes = await self._scheduler.debug_look.remote(look)
        return picture

    async def debug_journal(self, replica: str, part: Part) -> tuple[bytes, bytes]:
        """A film of what the engine records, or an encoded error; nothing of either where another
        replica is meant. The file is on this node, and here the engine does not wait for it."""
        if replica != self._name:
            return b"", b""
        try:
            return await play_recorded(self._journal, part), b""
        except OctavoError as error:
            return b"", encode_error(error)

    async def rouse(self, route: Route) -> None:
        """Nothing. That it is called makes Serve start a replica where there is none."""

    async def record_autoscaling_stats(self) -> dict[str, float]:
        """What autoscaling goes by: `octavo.cluster.autoscaling.Load`. Called by Serve."""
        try:
            load: dict[str, float] = await self._scheduler.load.remote()
        except RayActorError:
            return {}  # this replica is about to end
        return load

    async def check_health(self) -> None:
        """A step could run now."""
        async with asyncio.timeout(HEALTH_TIMEOUT_SECONDS):
            fault = await self._scheduler.fault.remote()
        if fault is not None:
            raise RuntimeError(fault)

    async def __del__(self) -> None:
        """Called by Serve when all that was begun here has ended, and where it was not yet up."""
        if self._mourner is not None:
            self._mourner.cancel()
            await self._scheduler.stop.remote()

    async def _end_with_engine(self) -> None:
        try:
            await self._scheduler.died.remote()  # it has told its reason
        except RayActorError:
            self._notices.say(f"{SCHEDULER_DIED}; a new group takes over", "warning")
            self._notices.close()
            await asyncio.sleep(FAREWELL_SECONDS)
        os._exit(1)  # calls under way have their answers; Serve replaces the process


@serve.ingress()
class Ingress:
    """The OpenAI API over all replicas of all models. With an address to `listen` at it answers
    HTTP itself: Serve's proxy costs as much processor time a request, and a token, as all of the
    API. `notices` is a `NoticeBoard`'s address, or None; then what it has to say goes to its own
    output, which Ray keeps."""

    def __init__(
        self,
        models: Sequence[tuple[Callable[[], FrontSettings], DeploymentHandle[Any]]],
        listen: Address | None,
        notices: str | None = None,
    ) -> None:
        # What only a front needs takes a second to import, which a replica need not wait for.
        from octavo.cluster.api.app import create_shared_app
        from octavo.cluster.api.front import Front
        from octavo.cluster.api.request_log import log_requests
        from octavo.cluster.text.tokens import Tokenizer

        node = str(ray.util.get_node_ip_address())  # type: ignore[no-untyped-call]
        self._clients: list[RemoteClient] = []
        fronts = []
        for make_settings, replicas in models:
            settings = make_settings()
            client = RemoteClient(replicas, node)
            client.start()
            self._clients.append(client)
            patient = Failover(client, settings.failover_timeout)
            fronts.append(Front(patient, settings, Tokenizer.load(settings.model_path)))
        self._app = create_shared_app(fronts)
        if fronts[0].settings.enable_log_requests:
            log_requests(print if notices is None else Notices(notices, "ingress").say)
        self._http: HttpServer | None = None
        if listen is not None:
            try:
                self._http = HttpServer(self._app, listen)
            except OSError as error:
                where = f"{listen.host}:{listen.port}"
                raise EngineDead(f"cannot listen on {where}: {error.strerror}") from error
            self._http.start()

    def __serve_build_asgi_app__(self) -> Any:
        """For Serve's own proxies, where they are the way in."""
        return self._app

    async def check_health(self) -> None:
        """Requests are being answered."""
        if self._http is not None and not self._http.alive:
            raise RuntimeError("the HTTP server has ended")

    async def __del__(self) -> None:
        if self._http is not None:
            await self._http.stop()
        for client in self._clients:
            await client.stop()


@dataclass(frozen=True, slots=True)
class ServedModel:
    """One model of an application, as Serve needs to know it. `make_spec` is called in each of its
    replicas and `make_settings` in each ingress: only there is it known where the model lies.
    `resources` are custom ones that each rank takes. For `autoscaling` and what follows see
    `octavo.cluster.arguments`; `made_from` and `told_of` are what replicas and ingresses are to be
    replaced for where it changes."""

    deployment: str
    config: EngineConfig
    make_spec: Callable[[], ReplicaSpec]
    make_settings: Callable[[], FrontSettings]
    resources: Mapping[str, float] = field(default_factory=dict)
    autoscaling: Autoscaling | None = None
    drain_timeout: float = DRAIN_SECONDS
    max_surge_percent: int = 0
    made_from: Mapping[str, Any] = field(default_factory=dict)
    told_of: Mapping[str, Any] = field(default_factory=dict)


def build_app(
    models: Sequence[ServedModel],
    listen: Address | None,
    ingress_replicas: int = 1,
    notices: str | None = None,
) -> Application:
    """The Serve application of one or more models. See `Ingress` for `listen` and `notices`."""
    # A line a request in three processes costs more than the request's own bookkeeping.
    logs = LoggingConfig(enable_access_log=False, log_level="WARNING")
    ingress = serve.deployment(
        name=INGRESS,
        num_replicas=ingress_replicas,
        max_ongoing_requests=INGRESS_STREAMS,
        ray_actor_options={"num_cpus": REPLICA_CPUS},
        health_check_period_s=HEALTH_SECONDS,
        graceful_shutdown_wait_loop_s=0.2,
        graceful_shutdown_timeout_s=INGRESS_DRAIN_SECONDS,
        max_surge_percent=100,
        logging_config=logs,
    )(Ingress)
    told = [octavo_version(), listen, [[each.deployment, each.told_of] for each in models]]
    bound = [(model.make_settings, _replicas(model, logs)) for model in models]
    return with_version(ingress, told).bind(bound, listen, notices)


def _replicas(model: ServedModel, logs: LoggingConfig) -> Application:
    config = model.config
    count: dict[str, Any] = {"num_replicas": config.num_replicas}
    if model.autoscaling is not None:
        count = {"autoscaling_config": serve_autoscaling(model.autoscaling)}
    deployment = serve.deployment(
        name=model.deployment,
        **count,
        max_ongoing_requests=config.max_num_seqs + config.max_num_queued_reqs + 1,
        max_queued_requests=100,
        ray_actor_options={"num_cpus": REPLICA_CPUS},
        placement_group_bundles=bundles(config, model.resources),
        placement_group_strategy=config.placement_group_strategy,
        request_router_config=RequestRouterConfig(request_router_class=ROUTER),  # type: ignore[arg-type]
        health_check_period_s=HEALTH_SECONDS,
        health_check_timeout_s=2 * HEALTH_TIMEOUT_SECONDS,
        graceful_shutdown_wait_loop_s=0.2,
        graceful_shutdown_timeout_s=model.drain_timeout,
        max_surge_percent=model.max_surge_percent,
        logging_config=logs,
    )(Replica)
    return with_version(deployment, [octavo_version(), model.made_from]).bind(model.make_spec)
