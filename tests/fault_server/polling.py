"""agenticSeek's three-step protocol: `/setup`, `/generate`, `/get_updated_sentence`; a fault answers `/generate`."""

from __future__ import annotations

from typing import Any

from .behaviours import Reply
from .record import Request
from .render import Dialect, Event


class Polling(Dialect):
    """Keeps the sentence of the last `/generate`; each question for it gives one piece more."""

    def __init__(self) -> None:
        self._sentences: list[str] = [""]
        self.models: list[str] = []

    def claims(self, request: Request) -> bool:
        return request.method == "POST" and request.path == "/generate"

    def streams(self, request: Request) -> bool:
        return False

    def events(self, reply: Reply, request: Request) -> list[Event]:
        raise AssertionError("nothing streams here")

    def document(self, reply: Reply, request: Request) -> Any:
        pieces = reply.pieces
        if isinstance(pieces, int):
            text = reply.text or ""
            pieces = tuple(text[at : at + pieces] for at in range(0, len(text), pieces))
        self._sentences = ["".join(pieces[: count + 1]) for count in range(len(pieces))] or [""]
        return {"message": "Generation started"}

    def error(self, code: int, message: str) -> Any:
        return {"error": message or f"status {code}"}

    def check(self, body: Any) -> list[str]:
        messages = body.get("messages") if isinstance(body, dict) else None
        if not isinstance(messages, list) or not messages:
            return ["messages must be a non-empty list"]
        return [
            f"messages.{position} has no role and text"
            for position, message in enumerate(messages)
            if set(message) != {"role", "content"} or not message["content"]
        ]

    def routes(self, models: tuple[str, ...]) -> dict[str, Any]:
        return {"/setup": self._setup, "/get_updated_sentence": self._next}

    def _setup(self, request: Request) -> Any:
        self.models.append(request.json["model"])
        return {"message": "Model set"}

    def _next(self, request: Request) -> Any:
        sentence = self._sentences.pop(0) if self._sentences else ""
        complete = not self._sentences
        if complete:
            self._sentences = [sentence]
        return {"sentence": sentence, "is_complete": complete}
