"""What must not reach a screen or a pipe: torn keys, and characters that command a terminal instead of being text."""

from __future__ import annotations

import re

from app.config.secrets import Redactor

# ECMA-48: CSI, then the string commands (OSC, DCS, SOS, PM, APC) with their content, then the two-character escapes.
_COMMAND = re.compile(
    r"(?:\x1b\[|\x9b)[0-?]*[ -/]*[@-~]"
    r"|(?:\x1b[]PX^_]|[\x9d\x90\x98\x9e\x9f])[^\x07\x1b\x9c]*(?:\x07|\x1b\\|\x9c)"
    r"|\x1b[ -/]*[0-Z\\^-~]"
)
# Whatever control is left, and the marks that turn the direction of text, which can hide what a command does.
_CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
_OPEN_COMMAND = re.compile(r"(?:\x1b|[\x9b\x9d\x90\x98\x9e\x9f])[^\x07\x9c\n]{0,256}\Z")


class StreamFilter:
    """Makes streamed text fit to be shown, also where a secret or a terminal command is torn between two pieces."""

    def __init__(self, redactor: Redactor, *, for_terminal: bool) -> None:
        self._redact = redactor
        self._for_terminal = for_terminal
        self._rest = ""

    def feed(self, piece: str) -> str:
        """What may be shown by now."""
        text = self._redact(self._rest + piece)
        keep = self._redact.held_back(text)
        if self._for_terminal and (command := _OPEN_COMMAND.search(_COMMAND.sub(_blank, text))):
            keep = max(keep, len(text) - command.start())
        cut = len(text) - keep
        self._rest = text[cut:]
        return self._done(text[:cut])

    def flush(self) -> str:
        """What was held back; the stream is over."""
        rest, self._rest = self._rest, ""
        return self._done(self._redact(rest))

    def _done(self, text: str) -> str:
        return plain(text) if self._for_terminal else text


def plain(text: str) -> str:
    """Text without anything that a terminal would obey; line ends and tabs stay."""
    text = text.replace("\r\n", "\n")
    return _CONTROL.sub(_visible_surrogate, _COMMAND.sub("", text))


def visible(text: str) -> str:
    """Text with its control characters written out, for what a person is about to approve: nothing may hide."""
    return _CONTROL.sub(lambda match: f"\\u{ord(match[0]):04x}", text)


def repaired(text: str) -> str:
    """Text from the command line or a pipe with undecodable bytes replaced."""
    return text.encode("utf-8", "surrogateescape").decode("utf-8", "replace") if not text.isascii() else text


def _visible_surrogate(match: re.Match[str]) -> str:
    return "\ufffd" if "\ud800" <= match[0] <= "\udfff" else ""


def _blank(match: re.Match[str]) -> str:
    return " " * len(match[0])
