"""The order of encoded messages: what a result brings beside itself waits until all results of its turn are out."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Encoded:
    """One message on the wire: its own entries, and entries that must wait until all results of a turn are out."""

    body: bytes
    after: bytes
    is_result: bool


def in_order(messages: Iterable[Encoded]) -> Iterator[bytes]:
    """The entries as they are sent; nothing stands between two results of the same turn."""
    waiting: list[bytes] = []
    for message in messages:
        if waiting and not message.is_result:
            yield from waiting
            waiting.clear()
        if message.body:
            yield message.body
        if message.after:
            waiting.append(message.after)
    yield from waiting
