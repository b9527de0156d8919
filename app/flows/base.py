"""What a flow is: something that runs agents on a task until there is a result; and the factory by name."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Protocol

from app.agents.react import ReActAgent
from app.schema.errors import ConfigError
from app.schema.message import ImageBlock
from app.schema.run import RunContext, RunResult


class Flow(Protocol):
    async def run(
        self, task: str, ctx: RunContext | None = None, *, images: Iterable[ImageBlock] = ()
    ) -> RunResult: ...


class Keeper(Protocol):
    """Where a flow's work is written down, so that it can be gone on with after any end."""

    def attach(self, agent: ReActAgent, thread: str, *, fresh: bool = False) -> bool:
        """Keep what `agent` does under the name `thread`. True when it was given work back that had been cut off.

        A `fresh` agent is given none; but what may have happened under that name is not done again unasked.
        """
        ...

    async def settled(self) -> None:
        """Wait until everything that was told so far is on disk. Raises `SessionError`."""
        ...


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
