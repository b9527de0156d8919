"""How a person takes part in a download of a model: asked before it, told of its progress. Nothing is fetched here."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Literal

Consent = Callable[[str], Awaitable[bool]]
"""Asked once before a download, with the words a person should read; the answer is theirs."""


async def consent_given(question: str) -> bool:
    """The consent of somebody who said yes beforehand (`--yes`)."""
    return True


async def refuse(question: str) -> bool:
    """The consent of nobody: without a person or `--yes` nothing is downloaded."""
    return False


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a slow preparation is: bytes for `download` and `verify`, seconds for `wait` and `start`."""

    phase: Literal["download", "verify", "wait", "start"]
    done: int
    total: int
    source: str = ""

    @property
    def text(self) -> str:
        match self.phase:
            case "download" | "verify":
                verb = "downloading" if self.phase == "download" else "checking"
                of = f"{self.done / 1e6:.0f} of {self.total / 1e6:.0f} MB"
                return f"{verb} the model: {of}" + (f" from {self.source}" if self.source else "")
            case "wait":
                return f"another process is downloading the model; waiting for {self.done} s"
            case "start":
                return f"loading the model: {self.done} s"


ShowProgress = Callable[[Progress], None]


def unwatched(progress: Progress) -> None:
    """For a run without a progress display."""


@dataclass(frozen=True, slots=True)
class DownloadHooks:
    """How a front end takes part: asked before a download, told of progress while it waits."""

    consent: Consent = refuse
    progress: ShowProgress = unwatched
