"""Counting tokens offline: tiktoken with shipped rank files, message and tool overheads, each message counted once.

Exact for OpenAI's encodings; for other models it is the usual approximation, which the usage of real replies corrects.
What a picture costs stands in `image_tokens.py`.
"""

from __future__ import annotations

import base64
import gzip
import hashlib
import json
from functools import lru_cache
from importlib import resources
from typing import TYPE_CHECKING

from app.llm.image_tokens import ImageRule, rule_for
from app.schema.errors import InvariantError
from app.schema.message import (
    Block,
    ImageBlock,
    Message,
    OpaqueBlock,
    ReasoningBlock,
    TextBlock,
    ToolCallBlock,
    ToolResultBlock,
)
from app.schema.request import ToolSpec

if TYPE_CHECKING:
    from tiktoken import Encoding

MESSAGE_TOKENS = 4
REQUEST_TOKENS = 2
TOOL_TOKENS = 7
TOOLS_TOKENS = 12
"""Per message, once a request, per tool, and once where there are tools: OpenAI's cookbook figures for chat formats."""

MEMORY = 8
"""About so many calls count in the ratio of real to estimated tokens; an older one fades."""
PRIOR_TOKENS = 200.0
"""So many tokens are taken as counted right before the first reply, so that a tiny one proves little."""
LOWEST_RATIO, HIGHEST_RATIO = 0.5, 3.0
CUT_RATIO, CUT_TOKENS = 0.3, 4096
"""A count below this share of ours, by more than so many tokens, is not that of the whole prompt."""
"""No tokenizer that we know is further from ours than this; a wilder report is a fault of the server."""
REMEMBERED = 64
"""Conversations whose running count a counter remembers."""
TAIL = 2
"""A request's last messages may be hints for this request alone, so its running count ends before them."""

_PATTERNS = {
    "o200k_base": "|".join(
        [
            r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
            r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
            r"\p{N}{1,3}",
            r" ?[^\s\p{L}\p{N}]+[\r\n/]*",
            r"\s*[\r\n]+",
            r"\s+(?!\S)",
            r"\s+",
        ]
    ),
    "cl100k_base": "|".join(
        [
            r"'(?i:[sdmt]|ll|ve|re)",
            r"[^\r\n\p{L}\p{N}]?+\p{L}++",
            r"\p{N}{1,3}+",
            r" ?[^\s\p{L}\p{N}]++[\r\n]*+",
            r"\s++$",
            r"\s*[\r\n]",
            r"\s+(?!\S)",
            r"\s",
        ]
    ),
}
_SHA256 = {
    "o200k_base": "446a9538cb6c348e3516120d7c08b09f57c36495e2acfffe59a5bf8b0cfb1a2d",
    "cl100k_base": "223921b76ee99bde995b7ff738513eef100fb51d18c93597a113bcffe865b2a7",
}
"""Split patterns and rank-file hashes as tiktoken pins them (tiktoken_ext/openai_public.py)."""

_CL100K_MODELS = ("gpt-4-", "gpt-3.5", "text-embedding")


@lru_cache(maxsize=2)
def encoding(name: str) -> Encoding:
    """The encoding `o200k_base` or `cl100k_base`, built from package data after a hash check; no network."""
    from tiktoken import Encoding

    packed = resources.files("app.llm").joinpath("data", f"{name}.tiktoken.gz").read_bytes()
    ranks = gzip.decompress(packed)
    if hashlib.sha256(ranks).hexdigest() != _SHA256[name]:
        raise InvariantError(f"the rank file of {name} is damaged", hint="reinstall dragoman")
    mergeable = {
        base64.b64decode(token): int(rank) for token, rank in (line.split() for line in ranks.splitlines() if line)
    }
    return Encoding(name, pat_str=_PATTERNS[name], mergeable_ranks=mergeable, special_tokens={})


def encoding_for(model: str) -> str:
    short = model.rsplit("/", 1)[-1].lower()
    return "cl100k_base" if short == "gpt-4" or short.startswith(_CL100K_MODELS) else "o200k_base"


class TokenCounter:
    """Counts for one model. A message or tool schema is counted once and its count kept beside it.

    `message`, `tool` and `text` are plain counts; `request` is an estimate of what the provider will count: the plain
    count times `ratio`, which `learn` takes from real usage. `used` tells whether anything was counted so far: the
    first count loads the encoding, which a run without limits can do without.
    """

    def __init__(self, model: str) -> None:
        self.encoding_name = encoding_for(model)
        self.image_rule: ImageRule = rule_for(model)
        self.used = False
        self._key = f"tokens:{self.encoding_name}:{self.image_rule.name}"
        self._texts: dict[str, int] = {}
        self._heads: dict[str, tuple[tuple[Message, ...], int]] = {}
        self._real = self._estimated = PRIOR_TOKENS

    @property
    def ratio(self) -> float:
        """The provider's counts of input tokens over ours."""
        return min(HIGHEST_RATIO, max(LOWEST_RATIO, self._real / self._estimated))

    def text(self, text: str) -> int:
        """Tokens of a text; marker texts such as `<|endoftext|>` are plain text."""
        self.used = True
        return len(encoding(self.encoding_name).encode_ordinary(text)) if text else 0

    def message(self, message: Message) -> int:
        known = message.wire.get(self._key)
        if known is None:
            known = MESSAGE_TOKENS + sum(self._block(block) for block in message.content)
            message.wire[self._key] = known
        return known

    def tool(self, spec: ToolSpec) -> int:
        known = spec.wire.get(self._key)
        if known is None:
            schema = json.dumps(spec.parameters, ensure_ascii=False, separators=(",", ":"))
            known = TOOL_TOKENS + self.text(spec.name) + self.text(spec.description) + self.text(schema)
            spec.wire[self._key] = known
        return known

    def request(self, messages: tuple[Message, ...], *, system: str = "", tools: tuple[ToolSpec, ...] = ()) -> int:
        """An estimate of the input tokens of a request; the cost is that of what is new in it."""
        return round(self.plain(messages, system=system, tools=tools) * self.ratio)

    def plain(self, messages: tuple[Message, ...], *, system: str = "", tools: tuple[ToolSpec, ...] = ()) -> int:
        """Our own count of a request, before experience."""
        head = REQUEST_TOKENS + (self._remembered(system) + MESSAGE_TOKENS if system else 0)
        offered = TOOLS_TOKENS + sum(map(self.tool, tools)) if tools else 0
        return head + offered + self._running(messages)

    def learn(
        self, messages: tuple[Message, ...], real: int, *, system: str = "", tools: tuple[ToolSpec, ...] = ()
    ) -> bool:
        """Hold what the provider counted for this request against our count, for later estimates.

        False, with nothing learned, for a count so far below ours that the server must have cut the prompt.
        """
        ours = self.plain(messages, system=system, tools=tools)
        if real < ours * CUT_RATIO and ours - real > CUT_TOKENS:
            return False
        fade = 1 - 1 / MEMORY
        self._real = self._real * fade + real
        self._estimated = self._estimated * fade + ours
        return True

    def _running(self, messages: tuple[Message, ...]) -> int:
        """The sum over the messages, from where the same conversation stood at its last request."""
        if not messages:
            return 0
        first = messages[0].id
        head, total = self._heads.get(first, ((), 0))
        if not head or messages[: len(head)] != head:
            head, total = (), 0
        settled = max(len(messages) - TAIL, len(head))
        total += sum(map(self.message, messages[len(head) : settled]))
        if settled > len(head):
            self._heads.pop(first, None)
            if len(self._heads) >= REMEMBERED:
                self._heads.pop(next(iter(self._heads)))
            self._heads[first] = (messages[:settled], total)
        return total + sum(map(self.message, messages[settled:]))

    def _remembered(self, text: str) -> int:
        """The count of a system prompt, which comes again with every request."""
        known = self._texts.get(text)
        if known is None:
            if len(self._texts) >= REMEMBERED:
                self._texts.clear()
            known = self._texts[text] = self.text(text)
        return known

    def _block(self, block: Block) -> int:
        match block:
            case TextBlock() | ReasoningBlock():
                return self.text(block.text)
            case ImageBlock():
                return self.image_rule.tokens(block.width, block.height, block.detail)
            case ToolCallBlock():
                return self.text(block.id) + self.text(block.name) + self.text(block.arguments)
            case ToolResultBlock():
                return self.text(block.call_id) + sum(self._block(inner) for inner in block.content)
            case OpaqueBlock():
                return self.text(block.raw)
