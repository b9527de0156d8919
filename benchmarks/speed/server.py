"""The scripted provider of the speed measurements: chat completions on loopback, answered as fast as Python can.

What to answer stands in the path, so the server keeps no state: `/n20-d50-k8-h0-x0/v1/chat/completions` means 20
replies with tool calls before the final text, 50 ms before each reply, 8 calls in a reply, no further delay of the
final text, and no paced text. The final text is the arrival time of the request (`time.monotonic_ns`); with `x200` it
is 200 pieces, one each 2 ms, each the time of its own writing. `/u500/v1/chat/completions` answers with 500 pieces of
text at once. Prints its port and serves until its stdin closes.
"""

from __future__ import annotations

import asyncio
import json
import re
import sys
import time
from functools import lru_cache
from typing import Any

PATH = re.compile(rb"/n(\d+)-d(\d+)-k(\d+)-h(\d+)-x(\d+)/v1/chat/completions")
LONG = re.compile(rb"/u(\d+)/v1/chat/completions")
MODEL = "gpt-4o-mini"
PACE_S = 0.002
USAGE = {"prompt_tokens": 1000, "completion_tokens": 20, "total_tokens": 1020}
HEAD = {"id": "chatcmpl-1", "created": 1700000000, "model": MODEL}
EVENT_STREAM = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
DONE = b"data: [DONE]\n\n"


def _dumps(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()


def _event(delta: dict[str, Any] | None, finish: str | None = None, **more: Any) -> bytes:
    choices = [] if delta is None else [{"index": 0, "delta": delta, "finish_reason": finish}]
    return b"data: " + _dumps({**HEAD, "object": "chat.completion.chunk", "choices": choices, **more}) + b"\n\n"


def _chunk(event: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(event), event)


def _streamed(deltas: list[dict[str, Any]], finish: str) -> bytes:
    events = [_event({"role": "assistant", "content": None}), *map(_event, deltas), *_ending(finish)]
    return EVENT_STREAM + b"".join(map(_chunk, events)) + b"0\r\n\r\n"


def _ending(finish: str) -> list[bytes]:
    return [_event({}, finish), _event(None, usage=USAGE), DONE]


def _whole(message: dict[str, Any], finish: str) -> bytes:
    choice = {"index": 0, "message": {"role": "assistant", **message}, "finish_reason": finish}
    body = _dumps({**HEAD, "object": "chat.completion", "choices": [choice], "usage": USAGE})
    return b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%b" % (len(body), body)


@lru_cache(maxsize=4096)
def _calls(number: int, calls: int, stream: bool) -> bytes:
    """A reply with tool calls; no two of a conversation are alike, so that nothing looks like going in circles."""
    names = [(f"call_{number}_{n}", f'{{"n":{number * 100 + n}}}') for n in range(calls)]
    if not stream:
        entries = [{"id": i, "type": "function", "function": {"name": "note", "arguments": a}} for i, a in names]
        return _whole({"content": None, "tool_calls": entries}, "tool_calls")
    deltas: list[dict[str, Any]] = []
    for index, (call_id, arguments) in enumerate(names):
        function = {"name": "note", "arguments": ""}
        deltas.append({"tool_calls": [{"index": index, "id": call_id, "type": "function", "function": function}]})
        for piece in (arguments[:5], arguments[5:-1], arguments[-1:]):
            deltas.append({"tool_calls": [{"index": index, "function": {"arguments": piece}}]})
    return _streamed(deltas, "tool_calls")


@lru_cache(maxsize=16)
def _text(pieces: int) -> bytes:
    return _streamed([{"content": f" word{number % 10}"} for number in range(pieces)], "stop")


class Provider(asyncio.Protocol):
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._buffer = b""
        self._tasks: set[asyncio.Task[None]] = set()

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        head, found, body = self._buffer.partition(b"\r\n\r\n")
        if not found:
            return
        sized = re.search(rb"content-length: *(\d+)", head, re.IGNORECASE)
        length = int(sized[1]) if sized else 0
        if len(body) >= length:
            self._buffer = b""
            self._answer(head, body)

    def _answer(self, head: bytes, body: bytes) -> None:
        loop = asyncio.get_running_loop()
        if long := LONG.search(head):
            self._transport.write(_text(int(long[1])))
            return
        wanted = PATH.search(head)
        if wanted is None:
            self._transport.write(b"HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\n\r\n")
            return
        steps, delay, calls, hold, pieces = map(int, wanted.groups())
        stream = b'"stream":true' in body or b'"stream": true' in body
        number = body.count(b'"tool_call_id"') // max(calls, 1)
        if number < steps:
            reply = _calls(number, calls, stream)
        elif pieces:
            task = loop.create_task(self._paced(pieces))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
            return
        else:
            delay += hold
            text = {"content": str(time.monotonic_ns())}
            reply = _streamed([text], "stop") if stream else _whole(text, "stop")
        if delay:
            loop.call_later(delay / 1000, self._transport.write, reply)
        else:
            self._transport.write(reply)

    async def _paced(self, pieces: int) -> None:
        self._transport.write(EVENT_STREAM + _chunk(_event({"role": "assistant", "content": ""})))
        for _ in range(pieces):
            await asyncio.sleep(PACE_S)
            self._transport.write(_chunk(_event({"content": f"{time.monotonic_ns()} "})))
        self._transport.write(b"".join(map(_chunk, _ending("stop"))) + b"0\r\n\r\n")


async def main() -> None:
    loop = asyncio.get_running_loop()
    server = await loop.create_server(Provider, "127.0.0.1", 0, backlog=4096)
    print(server.sockets[0].getsockname()[1], flush=True)
    await loop.run_in_executor(None, sys.stdin.read)


if __name__ == "__main__":
    asyncio.run(main())
