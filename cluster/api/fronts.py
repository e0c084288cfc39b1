"""The models of one server, and which of them a request is for."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from octavo.cluster.api.failures import UnknownModel
from octavo.cluster.api.front import Front
from octavo.cluster.api.keys import Doorkeeper, Keys
from octavo.cluster.api.settings import FrontSettings
from octavo.scheduler.errors import InvalidRequest


@dataclass(frozen=True)
class Fronts:
    """One front a model, at least one; keys and limits are the same for all. Raises
    `InvalidRequest` where two models go by one name."""

    each: tuple[Front, ...]

    def __post_init__(self) -> None:
        for name in self.names:
            if self.names.count(name) > 1:
                raise InvalidRequest(
                    "served_model_name",
                    f"two models are called {name!r}; give one another served_model_name",
                )

    @property
    def names(self) -> tuple[str, ...]:
        """All names that requests may use, of all models."""
        return tuple(name for front in self.each for name in front.settings.names)

    @property
    def shared(self) -> FrontSettings:
        """For the settings that all models have in common."""
        return self.each[0].settings

    def of(self, asked: str | None) -> Front:
        """The front of the model that is asked for; a single model need not be named. Raises
        `UnknownModel` or `InvalidRequest`."""
        if len(self.each) == 1:
            return self.each[0]
        if asked is None:
            raise InvalidRequest("model", f"model is missing; served: {', '.join(self.names)}")
        for front in self.each:
            if asked in front.settings.names:
                return front
        raise UnknownModel(asked, self.names)

    @cached_property
    def door(self) -> Doorkeeper:
        """Who may call."""
        known = self.shared
        return Doorkeeper(Keys(known.api_keys, known.admin_api_key, known.api_key_file))

    def faults(self) -> dict[str, str]:
        """Why models cannot run a step now, by name; those that can are left out, and those that
        may be asleep."""
        faults = {
            front.settings.served_model_names[0]: front.client.fault()
            for front in self.each
            if not front.settings.scale_to_zero or front.client.stats()
        }
        return {name: fault for name, fault in faults.items() if fault is not None}
