"""Who we are at AWS and where: region, address and signature of a request, by boto3's own chain of credentials.

Everything here may block (files, single sign-on, instance metadata) and so runs in worker threads. Needs the extra
`bedrock`.
"""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import Mapping
from importlib import import_module
from typing import Any
from urllib.parse import urlsplit

from app.schema.errors import ConfigError, LLMError

SERVICE = "bedrock"
"""What signatures for both services, the runtime and the catalogue, are made for."""
ANY_REGION = "us-east-1"
"""For an address of the user's own, which reads the region, if at all, only from the signature."""
CREDENTIALS_HINT = (
    "set api_key under [llm] or AWS_BEARER_TOKEN_BEDROCK to a Bedrock API key, or set up AWS credentials"
    " (`aws configure`, AWS_PROFILE, or AWS_ACCESS_KEY_ID with AWS_SECRET_ACCESS_KEY)"
)
_OWN_HOST = re.compile(r"bedrock(?:-runtime)?\.[a-z0-9-]+\.amazonaws\.com(?:\.cn)?")
REGION_HINT = "set region under [llm], or the variable AWS_REGION, for example to us-east-1"


class AWSAccess:
    """One account. `open` must have returned before an address is read; it is cheap from the second call on."""

    def __init__(self, *, base_url: str, region: str, bearer: bool) -> None:
        address = base_url.partition("?")[0].rstrip("/")
        host = urlsplit(address).hostname or ""
        self.region: str = region or _region_of(host)
        # The service's own address says no more than its region, and is often that of its catalogue.
        self._base_url = "" if _OWN_HOST.fullmatch(host) else address
        self._bearer = bearer
        self._runtime = self._catalogue = self._base_url
        self._session: Any = None
        self._credentials: Any = None
        self._opening = asyncio.Lock()

    @property
    def runtime(self) -> str:
        """The address that models answer at."""
        return self._runtime

    @property
    def catalogue(self) -> str:
        """The address that lists the models."""
        return self._catalogue

    async def open(self) -> None:
        """Find region, addresses and, where no API key is set, credentials. Raises `ConfigError` or `LLMError`."""
        if self._session is None:
            async with self._opening:
                if self._session is None:
                    self._session = await asyncio.to_thread(self._open)

    async def signed(self, method: str, url: str, body: bytes | None, headers: Mapping[str, str]) -> dict[str, str]:
        """The headers with the signature of exactly this request; as they are where an API key says enough."""
        await self.open()
        if self._credentials is None:
            return dict(headers)
        return await asyncio.to_thread(self._sign, method, url, body, dict(headers))

    def _open(self) -> Any:
        try:
            library: Any = import_module("boto3.session")
        except ImportError:
            hint = "pip install 'dragoman[bedrock]'"
            raise ConfigError("Amazon Bedrock needs the package boto3", hint=hint) from None
        from botocore.exceptions import BotoCoreError

        # boto3 itself reads only the older AWS_DEFAULT_REGION.
        wanted = self.region or os.environ.get("AWS_REGION") or None
        try:
            session: Any = library.Session(region_name=wanted)
            self.region = session.region_name or (ANY_REGION if self._base_url else "")
            if not self.region:
                raise ConfigError("no AWS region is set for Amazon Bedrock", hint=REGION_HINT)
            if not self._bearer:
                self._credentials = session.get_credentials()
                if self._credentials is None:
                    raise LLMError("no AWS credentials were found", "MISSING_CREDENTIAL", hint=CREDENTIALS_HINT)
            if not self._base_url:
                self._runtime = self._address(session, "bedrock-runtime")
                self._catalogue = self._address(session, "bedrock")
        except ValueError as error:
            raise ConfigError(f"AWS: {error}", hint=REGION_HINT) from error
        except BotoCoreError as error:
            raise LLMError(f"AWS: {error}", "MISSING_CREDENTIAL", hint=CREDENTIALS_HINT) from error
        return session

    def _address(self, session: Any, service: str) -> str:
        """What boto3 itself would call: partitions, FIPS and AWS_ENDPOINT_URL_… are its knowledge."""
        client = session.client(service, region_name=self.region)
        try:
            return client.meta.endpoint_url.rstrip("/")
        finally:
            client.close()

    def _sign(self, method: str, url: str, body: bytes | None, headers: dict[str, str]) -> dict[str, str]:
        from botocore.auth import SigV4Auth
        from botocore.awsrequest import AWSRequest
        from botocore.exceptions import BotoCoreError

        try:
            frozen = self._credentials.get_frozen_credentials()
        except BotoCoreError as error:
            raise LLMError(f"AWS: {error}", "AUTH", hint="sign in again (`aws sso login`)") from error
        request: Any = AWSRequest(method=method, url=url, data=body or b"", headers=headers)
        signer: Any = SigV4Auth(frozen, SERVICE, self.region)
        signer.add_auth(request)
        return dict(request.headers.items())


def _region_of(host: str) -> str:
    """The region that an address at AWS names, its private endpoints included."""
    found = re.search(r"\.([a-z]{2,}(?:-[a-z]+)+-\d+)\.(?:vpce\.)?amazonaws\.com", host)
    return found.group(1) if found else ""
