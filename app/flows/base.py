"""What a flow is: something that takes a task and runs agents on it until there is a result; and the factory by name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from app.schema.errors import ConfigError
from app.schema.run import RunContext, RunResult


class Flow(Protocol):
    async def run(self, task: str, ctx: RunContext | None = None) -> RunResult: ...


class FlowFactory:
    """Makes a flow by its kind; `register` adds kinds."""

    def __init__(self) -> None:
        self._makers: dict[str, Callable[[], Flow]] = {}

    def register(self, kind: str, maker: Callable[[], Flow]) -> None:
        self._makers[kind] = maker

    def create(self, kind: str) -> Flow:
        """A new flow. `ConfigError` names the kinds that exist."""
        try:
            return self._makers[kind]()
        except KeyError:
            raise ConfigError(f"there is no flow {kind!r}", hint=f"known flows: {', '.join(self._makers)}") from None
