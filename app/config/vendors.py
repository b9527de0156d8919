"""Which vendors exist: one row of facts each, and how a label or an address finds its row.

How a vendor's API is spoken is no matter of this file; that is the adapters' job.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal
from urllib.parse import urlsplit

from app.config.values import is_placeholder, is_private_host

Dialect = Literal["chat", "responses", "messages", "converse", "gemini", "ollama", "polling", "embedded", "test"]
"""How an account is spoken to; one file each in `llm/adapters/`."""


@dataclass(frozen=True, slots=True)
class Vendor:
    """One account row. `base_url` has no trailing slash; empty = the vendor has no address of its own."""

    name: str
    label: str
    base_url: str
    key_env: tuple[str, ...]
    """Environment variables that may hold the key, in the order in which they are tried."""
    local: bool
    """Whether text stays on the user's own machines."""
    default_model: str
    """Used when no model is named; empty = the user has to choose one."""
    aliases: tuple[str, ...] = ()
    hosts: tuple[str, ...] = ()
    """Further domains of this vendor; a domain stands for its sub-domains too."""
    base_url_env: tuple[str, ...] = ()
    """Environment variables that may hold another address."""
    dialect: Dialect = "chat"
    """What its own label means; a label that only names a dialect (`openai`, `openai_responses`) wins over this."""


def _cloud(
    name: str,
    label: str,
    base_url: str,
    key_env: tuple[str, ...],
    model: str,
    dialect: Dialect = "chat",
    **more: tuple[str, ...],
) -> Vendor:
    return Vendor(name, label, base_url, key_env, False, model, dialect=dialect, **more)


def _local(
    name: str,
    label: str,
    base_url: str,
    key_env: tuple[str, ...] = (),
    dialect: Dialect = "chat",
    **more: tuple[str, ...],
) -> Vendor:
    return Vendor(name, label, base_url, key_env, True, "", dialect=dialect, **more)


_ROWS = (
    _cloud("openai", "OpenAI", "https://api.openai.com/v1", ("OPENAI_API_KEY",), "gpt-6.1-terra",
           aliases=("openai_responses", "openai_compatible"), base_url_env=("OPENAI_BASE_URL", "OPENAI_API_BASE")),
    _cloud("azure", "Azure OpenAI", "", ("AZURE_OPENAI_API_KEY", "AZURE_API_KEY"), "",
           aliases=("azure_openai",), base_url_env=("AZURE_OPENAI_ENDPOINT",),
           hosts=("openai.azure.com", "cognitiveservices.azure.com", "services.ai.azure.com")),
    _cloud("anthropic", "Anthropic", "https://api.anthropic.com/v1", ("ANTHROPIC_API_KEY",), "claude-sonnet-5-5",
           dialect="messages", aliases=("claude",), base_url_env=("ANTHROPIC_BASE_URL",)),
    _cloud("aws", "Amazon Bedrock", "", ("AWS_BEARER_TOKEN_BEDROCK",), "",
           dialect="converse", aliases=("bedrock", "aws_bedrock", "amazon"), hosts=("amazonaws.com",)),
    _cloud("google", "Google Gemini", "https://generativelanguage.googleapis.com/v1beta",
           ("GEMINI_API_KEY", "GOOGLE_API_KEY"), "gemini-3.8-flash", dialect="gemini",
           aliases=("gemini", "google_genai", "vertex")),
    _cloud("deepseek", "DeepSeek", "https://api.deepseek.com", ("DEEPSEEK_API_KEY", "DSK_DEEPSEEK_API_KEY"),
           "deepseek-v4-flash", aliases=("dsk_deepseek",)),
    _cloud("openrouter", "OpenRouter", "https://openrouter.ai/api/v1", ("OPENROUTER_API_KEY",), "openrouter/auto",
           aliases=("open_router",)),
    _cloud("together", "Together AI", "https://api.together.xyz/v1", ("TOGETHER_API_KEY",), "openai/gpt-oss-120b",
           aliases=("togetherai", "together_ai"), hosts=("together.ai",)),
    _cloud("minimax", "MiniMax", "https://api.minimax.io/v1", ("MINIMAX_API_KEY",), "MiniMax-M3",
           hosts=("minimaxi.com", "minimax.io"), base_url_env=("MINIMAX_BASE_URL",)),
    _cloud("groq", "Groq", "https://api.groq.com/openai/v1", ("GROQ_API_KEY",), "openai/gpt-oss-120b"),
    _cloud("mistral", "Mistral", "https://api.mistral.ai/v1", ("MISTRAL_API_KEY",), "mistral-medium-latest",
           aliases=("mistralai",)),
    _cloud("xai", "xAI", "https://api.x.ai/v1", ("XAI_API_KEY", "GROK_API_KEY"), "grok-4.7", aliases=("grok", "x_ai")),
    _cloud("moonshot", "Moonshot (Kimi)", "https://api.moonshot.ai/v1", ("MOONSHOT_API_KEY", "KIMI_API_KEY"), "kimi-k3",
           aliases=("kimi", "moonshotai"), hosts=("moonshot.cn", "moonshot.ai")),
    _cloud("zhipu", "Zhipu (GLM)", "https://open.bigmodel.cn/api/paas/v4",
           ("ZHIPUAI_API_KEY", "ZHIPU_API_KEY", "ZAI_API_KEY"), "glm-5.3", aliases=("zhipuai", "zai", "z_ai", "glm"),
           hosts=("bigmodel.cn", "z.ai")),
    _cloud("dashscope", "DashScope (Qwen)", "https://dashscope.aliyuncs.com/compatible-mode/v1",
           ("DASHSCOPE_API_KEY", "QWEN_API_KEY"), "qwen-plus", aliases=("qwen", "bailian", "aliyun"),
           hosts=("dashscope-intl.aliyuncs.com", "dashscope-us.aliyuncs.com")),
    _cloud("siliconflow", "SiliconFlow", "https://api.siliconflow.cn/v1", ("SILICONFLOW_API_KEY",),
           "deepseek-ai/DeepSeek-V3.2", hosts=("siliconflow.com", "siliconflow.cn")),
    _cloud("ppio", "PPIO", "https://api.ppinfra.com/v3/openai", ("PPIO_API_KEY",), "deepseek/deepseek-v3.2",
           aliases=("ppinfra",), hosts=("ppinfra.com", "ppio.com")),
    _cloud("jiekou", "Jiekou.AI", "https://api.jiekou.ai/openai", ("JIEKOU_API_KEY",), "claude-sonnet-4-5-20250929",
           aliases=("jiekou.ai",)),
    _cloud("huggingface", "Hugging Face", "https://router.huggingface.co/v1",
           ("HF_TOKEN", "HUGGINGFACE_API_KEY", "HUGGINGFACEHUB_API_TOKEN"), "openai/gpt-oss-120b",
           aliases=("hf", "hugging_face"), hosts=("huggingface.co", "huggingface.cloud")),
    _cloud("litellm", "LiteLLM", "http://127.0.0.1:4000/v1", ("LITELLM_API_KEY",), "", aliases=("litellm_proxy",)),
    _local("ollama", "Ollama", "http://127.0.0.1:11434", ("OLLAMA_API_KEY",), dialect="ollama"),
    _local("lm-studio", "LM Studio", "http://127.0.0.1:1234/v1", aliases=("lmstudio",)),
    _local("llama.cpp", "llama.cpp", "http://127.0.0.1:8080/v1", ("LLAMA_API_KEY",),
           aliases=("llamacpp", "llama_cpp", "llama_server")),
    _local("vllm", "vLLM", "http://127.0.0.1:8000/v1", ("VLLM_API_KEY",)),
    _local("local", "a local server", ""),
    _local("server", "agenticSeek's model server", "http://127.0.0.1:3333", dialect="polling"),
    Vendor("embedded", "the embedded model", "", (), True, "qwen2.5-coder-1.5b-instruct", aliases=("xllamacpp",),
           dialect="embedded"),
    Vendor("test", "the scripted model", "", (), True, "scripted", dialect="test"),
)  # fmt: skip

VENDORS: dict[str, Vendor] = {vendor.name: vendor for vendor in _ROWS}

DETECTION_ORDER = (
    "openai", "anthropic", "google", "deepseek", "openrouter", "mistral", "groq", "xai", "moonshot", "zhipu",
    "dashscope", "siliconflow", "minimax", "together", "ppio", "jiekou",
)  # fmt: skip
"""Whose key is taken first when nothing is configured. A Hugging Face token is left out: most people who have one
set it for downloads."""

_LOCAL_PORTS = {11434: "ollama", 1234: "lm-studio", 8080: "llama.cpp", 8000: "vllm", 4000: "litellm"}
_BY_HOST_LABELS = frozenset({"openai", "openai-responses", "openai-compatible"})


def _normal(label: str) -> str:
    return re.sub(r"[\s_-]+", "-", label.strip().lower())


_BY_LABEL = {_normal(label): vendor for vendor in _ROWS for label in (vendor.name, *vendor.aliases)}


def is_dialect(api_type: str) -> bool:
    """Whether a label only says how to speak (`openai`, `openai_responses`, an unknown label), not to whom."""
    label = _normal(api_type)
    return label in _BY_HOST_LABELS or label not in _BY_LABEL


def dialect_for(api_type: str, base_url: str, vendor: Vendor | None) -> Dialect:
    """How to speak to an account: its label's word, else chat completions, which nearly every address has."""
    label = _normal(api_type)
    if label == "openai-responses":
        return "responses"
    if _BY_LABEL.get(label) is VENDORS["anthropic"]:
        return "messages"
    if is_dialect(label) or vendor is None:
        return "chat"
    # The address of Google's compatible endpoint says itself what is spoken there.
    return "chat" if vendor.dialect == "gemini" and base_url.rstrip("/").endswith("/openai") else vendor.dialect


def vendor_for(api_type: str, base_url: str) -> tuple[Vendor | None, bool]:
    """The row of an account, and whether its label is known.

    A vendor's own label decides. For `openai` and unknown labels the address decides, so that a DeepSeek address
    finds DeepSeek's key, and so it does for `anthropic` with an address of somebody who imitates Anthropic's API;
    `None` is a cloud address that nobody knows. `Vendor.local` is true only when the address
    is private as well.
    """
    label = _normal(api_type) or "openai"
    known = label in _BY_LABEL
    host, port = _host_and_port(base_url)
    imitates = _BY_LABEL.get(label) is VENDORS["anthropic"] and host and not _owns(VENDORS["anthropic"], host)
    if not is_dialect(label) and not imitates:
        vendor = _BY_LABEL[label]
        return (replace(vendor, local=False) if host and not is_private_host(host) else vendor), known
    if not host:
        return VENDORS["openai"], known
    if is_private_host(host):
        return VENDORS[_LOCAL_PORTS.get(port or 0, "local")], known
    return next((vendor for vendor in _ROWS if not vendor.local and _owns(vendor, host)), None), known


def same_server(one: str, other: str) -> bool:
    """Whether two addresses name the same host and port, however they are written."""
    return _host_and_port(one)[0] != "" and _host_and_port(one) == _host_and_port(other)


def key_from_env(vendor: Vendor, env: Mapping[str, str]) -> tuple[str, str] | None:
    """(variable, key) of the first of the vendor's variables that holds a real key."""
    for name in vendor.key_env:
        key = env.get(name, "").strip()
        if key and not is_placeholder(key):
            return name, key
    return None


def vendor_from_env(env: Mapping[str, str]) -> Vendor | None:
    """The first vendor of `DETECTION_ORDER` whose key is in the environment."""
    return next((VENDORS[name] for name in DETECTION_ORDER if key_from_env(VENDORS[name], env)), None)


def base_url_from_env(vendor: Vendor, env: Mapping[str, str]) -> tuple[str, str] | None:
    """(variable, address) of the first of the vendor's address variables that is set."""
    return next(((name, env[name].strip()) for name in vendor.base_url_env if env.get(name, "").strip()), None)


def _host_and_port(base_url: str) -> tuple[str, int | None]:
    text = base_url.strip()
    try:
        parts = urlsplit(text if "://" in text else f"//{text}")
        port = parts.port
    except ValueError:
        return "", None
    return parts.hostname or "", port


def _owns(vendor: Vendor, host: str) -> bool:
    own = urlsplit(vendor.base_url).hostname
    domains = vendor.hosts if own is None else (*vendor.hosts, own)
    return any(host == domain or host.endswith(f".{domain}") for domain in domains)
