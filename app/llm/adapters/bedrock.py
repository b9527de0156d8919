"""Amazon Bedrock's Converse API. boto3 finds the account, signs each request and reads the frames; the wire is ours.

Why not through boto3's client, which blocks, stands in `docs/decisions/0007-bedrock-wire.md`.
"""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator, Iterable, Mapping
from contextlib import aclosing
from dataclasses import replace
from urllib.parse import quote

from app.llm.adapters.aws import CREDENTIALS_HINT, AWSAccess
from app.llm.adapters.base import ModelInfo
from app.llm.adapters.bedrock_decode import ConverseDecoder, FrameReader
from app.llm.adapters.bedrock_encode import EFFORTS, ConverseEncoder
from app.llm.adapters.http import Account, HTTPAdapter
from app.llm.adapters.wire import as_items, as_table, as_text
from app.llm.failures import RefusedOption
from app.llm.models import ModelFacts
from app.llm.transport import Response, Transport
from app.schema.errors import LLMError
from app.schema.message import JSON
from app.schema.request import ModelRequest
from app.schema.stream import Chunk, Finish

STAND_IN = "bear"
"""What OpenManus's example has as the key of a Bedrock account, which there is none of."""
_ADVICE: tuple[tuple[re.Pattern[str], str, str], ...] = (
    (
        re.compile(r"on-demand throughput|inference profile", re.IGNORECASE),
        "UNKNOWN_MODEL",
        "use an inference profile as `model`: the id with us., eu., apac. or global. in front, or a profile's ARN",
    ),
    (
        re.compile(r"access to the model|not authorized to perform|explicit deny", re.IGNORECASE),
        "AUTH",
        "ask for access to this model in the Bedrock console, or let the role call bedrock:InvokeModel*",
    ),
    (
        re.compile(r"model identifier is invalid|resolve the foundation model|end of its life", re.IGNORECASE),
        "UNKNOWN_MODEL",
        "check `model` and region; a model may be known in other regions only (`python main.py models` lists yours)",
    ),
    (
        re.compile(r"security token|signature|expired|ExpiredToken|UnrecognizedClient", re.IGNORECASE),
        "AUTH",
        f"the credentials are wrong or out of date; {CREDENTIALS_HINT}",
    ),
)
"""What the service says → the code it means, and what to do about it."""


class BedrockAdapter(HTTPAdapter):
    efforts = EFFORTS
    option_fields = {  # noqa: RUF012
        "temperature": ("inferenceConfig",),
        "stop": ("inferenceConfig",),
        "tool_choice": ("toolConfig",),
        "reasoning_effort": ("additionalModelRequestFields", "outputConfig"),
        "response_format": ("outputConfig",),
        "cache": ("messages",),
        "streaming": ("messages",),
    }

    def __init__(self, account: Account, transport: Transport, *, route: str, facts: ModelFacts) -> None:
        if account.api_key.strip() == STAND_IN:
            account = replace(account, api_key="")
        super().__init__(account, transport, route=route, facts=facts)
        self._aws = AWSAccess(base_url=account.base_url, region=account.region, bearer=bool(account.api_key.strip()))
        self._origin = account.base_url or account.region or "aws"
        self._encoder = ConverseEncoder(self._origin)

    def request_url(self, request: ModelRequest) -> str:
        """Some models cannot stream while tools are on offer; their whole reply is asked for once that is known."""
        model = request.config.model
        kind = "converse-stream" if self.corrections.takes("streaming", model) else "converse"
        return f"{self._aws.runtime}/model/{quote(model, safe='')}/{kind}"

    def models_url(self) -> str:
        return f"{self._aws.catalogue}/foundation-models"

    def encode(self, request: ModelRequest) -> bytes:
        return self._encoder.body(request, self.corrections.of(request.config.model), self.facts)

    def decoder(self) -> ConverseDecoder:
        return ConverseDecoder(self.who, self._origin)

    def framer(self) -> FrameReader:
        return FrameReader(self.who)

    async def headers_for(self, method: str, url: str, body: bytes | None) -> Mapping[str, str]:
        return await self._aws.signed(method, url, body, self.request_headers())

    def read_models(self, payload: JSON) -> Iterable[ModelInfo]:
        for row in map(as_table, as_items((as_table(payload) or {}).get("modelSummaries"))):
            if row is not None and "TEXT" in as_items(row.get("outputModalities")):
                yield ModelInfo(self.route, as_text(row.get("modelId")), as_text(row.get("modelName")))

    async def prepare(self) -> None:
        await self._aws.open()

    async def stream(self, request: ModelRequest) -> AsyncGenerator[Chunk]:
        """The wire does not say which model answered, and only that one can read its thinking again."""
        model = request.config.model
        try:
            async with aclosing(super().stream(request)) as chunks:
                async for chunk in chunks:
                    yield _with_model(chunk, model) if isinstance(chunk, Finish) else chunk
        except LLMError as error:
            if error.code == "TRANSPORT" and not self.account.base_url:
                error.hint = f"check region ({self._aws.region}) and the network"
            raise

    def _checked_key_headers(self) -> dict[str, str]:
        """A Bedrock API key is a bearer token; without one, requests are signed."""
        return super()._checked_key_headers() if self.account.api_key.strip() else {}

    async def _refusal(self, response: Response) -> LLMError:
        error = await super()._refusal(response)
        facts = error.failure
        if "prompt caching" in error.message:
            # Said with 403, as if it were about rights.
            refused = RefusedOption(error.message, "INVALID_REQUEST", status=facts.status, request_id=facts.request_id)
            refused.options = ("cache",)
            return refused
        for said, code, hint in _ADVICE:
            if error.code in ("AUTH", "UNKNOWN_MODEL", "INVALID_REQUEST", "HTTP_404") and said.search(error.message):
                return LLMError(error.message, code, status=facts.status, request_id=facts.request_id, hint=hint)
        return error


def _with_model(finish: Finish, model: str) -> Finish:
    state = finish.replay_state and {**finish.replay_state, "model": model}
    return replace(finish, model=model, replay_state=state)
