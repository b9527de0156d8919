"""What a flow is: something that runs agents on a task until there is a result; and the factory by name."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Protocol

from app.schema.errors import ConfigError
from app.schema.message import ImageBlock
from app.schema.run import RunContext, RunResult


class Flow(Protocol):
    async def run(
        self, task: str, ctx: RunContext | None = None, *, images: Iterable[ImageBlock] = ()
    ) -> RunResult: ...


class FlowFactory:
    """Makes a flow by its kind; `register` adds kinds."""

    def __init__(self) -> None:
        self._makers: dict[str, Callable[[], Flow]] = {}

    def register(self, kind: str, maker: Callable[[], Flow]) -> None:
        self._makers[kind] = maker

    def create(self, kind: str) -> Flow:
        """A new flow. `ConfigError` names the kinds that exist."""
        maker = self._makers.get(kind)
        if maker is None:
            raise ConfigError(f"there is no flow {kind!r}", hint=f"known flows: {', '.join(self._makers)}")
        return maker()
