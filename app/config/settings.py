"""Every setting, typed and frozen. Reading files, environment and flags is `load.py`'s job."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, SecretStr

from app.config.values import mask_url
from app.schema.errors import ConfigError


class Settings(BaseModel):
    """Base of all tables: frozen, strict about unknown keys; neither `repr` nor an error shows a secret."""

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        protected_namespaces=(),
        validate_default=False,
        hide_input_in_errors=True,
        allow_inf_nan=False,
    )

    def __repr_args__(self) -> Iterable[tuple[str | None, object]]:
        return ((name, mask_url(value) if isinstance(value, str) else value) for name, value in super().__repr_args__())


def _seconds_table(value: object) -> object:
    return {"total_s": value} if isinstance(value, int | float) and not isinstance(value, bool) else value


class TimeoutSettings(Settings):
    """Seconds. `idle_s` is the longest silence inside a stream; `total_s` bounds one attempt, None = no bound."""

    connect_s: float = Field(default=10.0, gt=0)
    first_byte_s: float = Field(default=300.0, gt=0)
    idle_s: float = Field(default=120.0, gt=0)
    total_s: float | None = Field(default=None, gt=0)


class RetrySettings(Settings):
    max_retries: int = Field(default=5, ge=0)
    initial_delay_s: float = Field(default=0.5, gt=0)
    max_delay_s: float = Field(default=10.0, gt=0)
    retry_after_cap_s: float = Field(default=60.0, ge=0)


class CapabilitySettings(Settings):
    """What the model can do, when the table in `llm/models.py` does not know or is wrong; None = not said."""

    images: bool | None = None
    tools: bool | None = None
    parallel_tools: bool | None = None
    reasoning: bool | None = None
    json_schema: bool | None = None


class RateSettings(Settings):
    """What the account allows, for all agents of the process together; None = not said, the vendor's headers tell."""

    requests_per_minute: int | None = Field(default=None, ge=1)
    tokens_per_minute: int | None = Field(default=None, ge=1)
    max_concurrency: int | None = Field(default=None, ge=1)


class LLMSettings(Settings):
    """One model configuration: the base `[llm]`, or `[llm.<name>]` laid over it."""

    name: str = "default"
    model: str = ""
    base_url: str = ""
    api_key: SecretStr = SecretStr("")
    api_type: str = "openai"
    api_version: str = ""
    region: str = ""
    """AWS only; empty = AWS_REGION, or the region of the AWS profile."""
    max_tokens: int | None = Field(default=None, gt=0)
    max_input_tokens: int | None = Field(default=None, gt=0)
    temperature: float | None = Field(default=None, ge=0, le=2)
    context_window: int | None = Field(default=None, gt=0)
    reasoning_effort: str | None = None
    tools: Literal["native", "text", "auto"] = "auto"
    timeout: Annotated[TimeoutSettings, BeforeValidator(_seconds_table)] = TimeoutSettings()
    fallback: tuple[str, ...] = ()
    keep_alive: int | str | None = None
    """Ollama only: how long the model stays loaded after a request, in seconds (-1 = for ever) or as "30m"."""
    headers: dict[str, str] = Field(default_factory=dict, repr=False)
    retry: RetrySettings = RetrySettings()
    rate: RateSettings = RateSettings()
    capabilities: CapabilitySettings = CapabilitySettings()
    script: str = ""
    """For `api_type = "test"`: a JSON file of scripted replies; empty = the built-in demonstration."""


class ProxySettings(Settings):
    server: str = ""
    username: str = ""
    password: SecretStr = SecretStr("")


class BrowserSettings(Settings):
    headless: bool | None = None
    disable_security: bool = False
    extra_chromium_args: tuple[str, ...] = ()
    chrome_instance_path: str | None = None
    wss_url: str | None = None
    cdp_url: str | None = None
    max_content_length: int = 2000
    proxy: ProxySettings = ProxySettings()


class SearchSettings(Settings):
    engine: str = "Google"
    fallback_engines: tuple[str, ...] = ("DuckDuckGo", "Baidu", "Bing")
    retry_delay: float = 60.0
    max_retries: int = 3
    lang: str = "en"
    country: str = "us"


class SandboxSettings(Settings):
    """`mode` is this product's switch; the other keys are OpenManus's and describe its container."""

    mode: Literal["auto", "bwrap", "docker", "none"] = "auto"
    use_sandbox: bool = False
    image: str = "python:3.12-slim"
    work_dir: str = "/workspace"
    memory_limit: str = "512m"
    cpu_limit: float = 1.0
    timeout: int = 300
    network_enabled: bool = False


class DaytonaSettings(Settings):
    daytona_api_key: SecretStr = SecretStr("")
    daytona_server_url: str = ""
    daytona_target: str = "us"
    sandbox_image_name: str = ""
    sandbox_entrypoint: str = ""
    VNC_password: SecretStr = SecretStr("")


class McpServerSettings(Settings):
    """One entry of `mcp.json`; the type is inferred from `command` or `url` when it is not given."""

    type: Literal["stdio", "sse", "http", "streamable-http"] | None = None
    url: str | None = None
    command: str | None = None
    args: tuple[str, ...] = Field(default=(), repr=False)
    env: dict[str, str] = Field(default_factory=dict, repr=False)
    headers: dict[str, str] = Field(default_factory=dict, repr=False)
    disabled: bool = False


class McpSettings(Settings):
    server_reference: str = ""
    servers: dict[str, McpServerSettings] = Field(default_factory=dict)


class FlowSettings(Settings):
    use_data_analysis_agent: bool = False
    agents: tuple[str, ...] = ("manus",)
    max_attempts: int = Field(default=2, ge=1)
    timeout_s: float = Field(default=3600.0, gt=0)


class MemorySettings(Settings):
    """What a model is shown of a long conversation. `compact_at` and `keep_tail` are parts of its context window."""

    max_messages: int | None = Field(default=None, ge=10)
    compact: bool = True
    compact_at: float = Field(default=0.8, ge=0, le=1)
    keep_tail: float = Field(default=0.16, ge=0, le=1)
    summarise: bool = True


class SessionSettings(Settings):
    """`keep_days`: sessions that nobody used for so long are forgotten; None = never."""

    save: bool = True
    keep_days: float | None = Field(default=None, gt=0)


class LimitSettings(Settings):
    """What may be spent; None = no limit. Tokens are input and output together, `max_cost` is US dollars."""

    max_tokens: int | None = Field(default=None, gt=0)
    max_cost: float | None = Field(default=None, gt=0)
    max_requests: int | None = Field(default=None, gt=0)


class BudgetSettings(LimitSettings):
    """Limits of one run, and under them those of each agent, of all runs of a process and of a day.

    `max_steps` is for agents that name none of their own; `unpriced` says whether a model without a known price may be
    called while money is limited.
    """

    max_steps: int | None = Field(default=None, ge=1)
    timeout_s: float | None = Field(default=None, gt=0)
    unpriced: Literal["count_only", "refuse"] = "count_only"
    agent: LimitSettings = LimitSettings()
    process: LimitSettings = LimitSettings()
    day: LimitSettings = LimitSettings()


class ServerSettings(Settings):
    host: str = "127.0.0.1"
    port: int = Field(default=7777, ge=0, le=65535)
    token: SecretStr = SecretStr("")


class VoiceSettings(Settings):
    speak: bool = False
    listen: bool = False
    languages: tuple[str, ...] = ("en",)


class WorkspaceSettings(Settings):
    path: str = ""


class AgentSettings(Settings):
    """`[agents.<name>]`: limits and the model of one agent."""

    llm: str | None = None
    max_steps: int | None = Field(default=None, ge=1)
    max_observe: int | None = Field(default=None, ge=100)


class Config(Settings):
    """Everything in force. `origins` says for each dotted key which file, variable or flag set it."""

    llm: dict[str, LLMSettings] = Field(default_factory=dict)
    browser: BrowserSettings = BrowserSettings()
    search: SearchSettings = SearchSettings()
    sandbox: SandboxSettings = SandboxSettings()
    daytona: DaytonaSettings = DaytonaSettings()
    mcp: McpSettings = McpSettings()
    runflow: FlowSettings = FlowSettings()
    memory: MemorySettings = MemorySettings()
    sessions: SessionSettings = SessionSettings()
    budget: BudgetSettings = BudgetSettings()
    server: ServerSettings = ServerSettings()
    voice: VoiceSettings = VoiceSettings()
    workspace: WorkspaceSettings = WorkspaceSettings()
    agents: dict[str, AgentSettings] = Field(default_factory=dict)
    path: Path | None = None
    origins: dict[str, str] = Field(default_factory=dict)

    def llm_for(self, name: str) -> LLMSettings:
        """The configuration `name`, or `ConfigError` naming those that exist."""
        try:
            return self.llm[name]
        except KeyError:
            known = ", ".join(sorted(self.llm)) or "none"
            raise ConfigError(f"there is no [llm.{name}]", hint=f"known model configurations: {known}") from None

    def llm_name_for_agent(self, agent: str) -> tuple[str, str]:
        """Which config name an agent uses, and why: explicit, else its lower-cased name, else `default`."""
        explicit = self.agent(agent).llm
        if explicit:
            return explicit, f"[agents.{agent}] llm"
        if agent.lower() in self.llm:
            return agent.lower(), f"[llm.{agent.lower()}]"
        return "default", "[llm]"

    def max_steps_for(self, agent: str) -> int | None:
        """The step limit in force for an agent, or None for the agent's own default."""
        return self.agent(agent).max_steps or self.budget.max_steps

    def agent(self, name: str) -> AgentSettings:
        return self.agents.get(name) or self.agents.get(name.lower()) or AgentSettings()
