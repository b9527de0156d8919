"""Counting tokens offline: tiktoken with shipped rank files, message and image overheads, each message counted once.

Exact for OpenAI's encodings; for other models it is the usual approximation, and provider usage wins when it comes.
"""

from __future__ import annotations

import base64
import gzip
import hashlib
import math
from functools import lru_cache
from importlib import resources
from typing import TYPE_CHECKING

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
"""Per message, and `REQUEST_TOKENS` once a request: OpenAI's cookbook figures for chat formats."""
REQUEST_TOKENS = 2

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


def image_tokens(width: int, height: int, detail: str = "auto") -> int:
    """OpenAI's tile formula: low detail costs 85; else fit into 2048 x 2048, scale the short side down to 768,
    then 170 for each 512-pixel tile plus 85. An unknown size counts as 1024 x 1024 (765).
    """
    if detail == "low":
        return 85
    if width <= 0 or height <= 0:
        width = height = 1024
    fit = min(1.0, 2048 / max(width, height))
    wide, high = width * fit, height * fit
    scale = min(1.0, 768 / min(wide, high))
    tiles = math.ceil(wide * scale / 512) * math.ceil(high * scale / 512)
    return tiles * 170 + 85


class TokenCounter:
    """Counts for one model. A message or tool schema is counted once and its count kept beside it."""

    def __init__(self, model: str) -> None:
        self.encoding_name = encoding_for(model)
        self._key = f"tokens:{self.encoding_name}"

    def text(self, text: str) -> int:
        """Tokens of a text; marker texts such as `<|endoftext|>` are plain text."""
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
            known = (
                MESSAGE_TOKENS + self.text(spec.name) + self.text(spec.description) + self.text(str(spec.parameters))
            )
            spec.wire[self._key] = known
        return known

    def request(self, messages: tuple[Message, ...], *, system: str = "", tools: tuple[ToolSpec, ...] = ()) -> int:
        """An estimate of the input tokens of a request; the cost is that of what is new in it."""
        head = REQUEST_TOKENS + (self.text(system) + MESSAGE_TOKENS if system else 0)
        return head + sum(map(self.message, messages)) + sum(map(self.tool, tools))

    def _block(self, block: Block) -> int:
        match block:
            case TextBlock() | ReasoningBlock():
                return self.text(block.text)
            case ImageBlock():
                return image_tokens(block.width, block.height, block.detail)
            case ToolCallBlock():
                return self.text(block.id) + self.text(block.name) + self.text(block.arguments)
            case ToolResultBlock():
                return self.text(block.call_id) + sum(self._block(inner) for inner in block.content)
            case OpaqueBlock():
                return self.text(block.raw)
