"""HTTP status, error body and wording → one `LLMError` with a stable code. Data tables; no transport, no policy.

Order of tests: authentication, throttling guards, quota, overflow, then the status. Wordings are matched with ASCII
word rules, because a Chinese character beside a word is no word boundary otherwise.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, cast

from app.llm.rate_headers import exhausted_s, retry_after_s, told_wait_s
from app.schema.errors import LLMError
from app.schema.message import JSON
from app.schema.stream import FinishReason
from app.schema.usage import Usage

_FLAGS = re.IGNORECASE | re.ASCII


def _any(*patterns: str) -> re.Pattern[str]:
    return re.compile("|".join(f"(?:{pattern})" for pattern in patterns), _FLAGS)


# Words by which waiting a little helps.
SOON = _any(
    r"per[ _-]?(?:minute|min\b|second)|\b(?:TPM|RPM)\b",
    r"(?:re)?try (?:again )?(?:in|after) \d",
)
# A request refused for its rate, whatever else its text says ("reduce the prompt length", "too many tokens").
THROTTLED = _any(
    SOON.pattern,
    r"rate.?limit",
    r"throttl",
    r"too many requests|slow down",
    r"too many tokens, please wait",
    r"qps request limit|api request limit reached|max organization concurrency|too many concurrent",
    r"请求过于频繁|请求过多|限流|流控|频率限制|频率过高|速率限制|并发.{0,10}(?:超|过高|上限)",
)

PER_MINUTE = re.compile(
    r"\bTPM\b[^\n]{0,40}limit:? ([0-9][0-9,]{0,14}),[^\n]{0,60}requested:? ([0-9][0-9,]{0,14})", _FLAGS
)
QUOTA = _any(
    r"insufficient[ _-](?:\w+[ _-])?(?:quota|balance|credits?|funds)",
    r"(?:quota|usage[ _-]limits?|budget|balance|credits?)\b.{0,30}?\b(?:exceeded|exhausted|reached|depleted|used up)",
    r"exceed(?:ed|s)?[ _](?:your |the )?(?:current[ _]|monthly[ _]|daily[ _])?(?:token[ _])?quota",
    r"exceeded_current_quota",
    r"out of (?:credits?|budget|quota)",
    r"credit balance is too low|requires more credits|payment required|key limit exceeded",
    r"reached your specified API usage limits?|billing_hard_limit|billing (?:is )?not active",
    r"arrear|overdue|spending limit|used all available credits|n't have any credits",
    r"balance is (?:insufficient|not enough)|account.{0,20} (?:is )?suspended",
    r"free tier.{0,60}(?:exhausted|used up)|today'?s quota|daily (?:request )?limit reached",
    r"limited to \d+ API calls / month",
    r"reached the set inference limit|out of free resource",
    r"余量.{0,6}(?:用尽|不足)|资源包.{0,8}(?:用尽|耗尽)|今日.{0,10}(?:限额|上限)|日流控|免费额度.{0,8}(?:用|耗)尽|充值",
    r"余额不足|额度不足|额度已用|配额.{0,6}(?:不足|用完|超)|欠费|账户.{0,4}余额",
)
# Google names the limit that was hit; a day is longer than any run waits.
PER_DAY = _any(r"quota_id=\w*PerDay")
# Words about money; a gateway's own rate-limit code beside them does not weaken them.
MONEY = _any(r"insufficient|current quota|billing|balance|credits?\b|余额|欠费|daily|today|今日|日流控|充值")
# Gemini says this on ordinary throttling; waiting helps.
NOT_QUOTA = _any(r"resource has been exhausted \(e\.g\. check quota\)")

OVERFLOW_CODES = _any(
    r"context_length_exceeded|model_context_window_exceeded|exceed_context_size_error|string_above_max_length|context_window_exceeded"
)
OVERFLOW = _any(
    r"context[ _-](?:length|window|size)[^.]{0,40}?(?:exceed|overflow)",
    r"(?:max(?:imum)?|maximal)(?: allowed| supported)? context (?:length|window|size)",
    r"(?:prompt|input|request|messages?)(?:s)?(?: is| are)? too (?:large|long) (?:for|to)[^.]{0,60}(?:context|model)",
    r"(?:prompt|input)(?: is)? too long",
    r"(?:input|prompt|request|messages?)[^.]{0,60}(?:exceed(?:s|ed)?|overflows?)[^.]{0,60}context",
    r"(?:input|prompt|request|messages?)[^.]{0,60}(?:is|are) (?:larger|longer) than[^.]{0,60}context",
    r"exceeds? the (?:available|model'?s?) context",
    r"input length and `?max_tokens`? exceed context limit",
    r"input token count[^.]{0,40}exceeds? the maximum",
    r"maximum prompt length is \d+",
    r"reduce the length of (?:the|your) (?:messages|prompt|input)",
    r"tokens to keep from the initial prompt is greater than the context",
    r"prompt token count of \d+ exceeds the limit",
    r"exceeded model token limit",
    r"longer than the (?:model'?s? context|maximum model) length",
    r"length of prompt_tokens must be less than max_seq_len",
    r"range of input length should be",
    r"`?inputs`? tokens \+ `?max_new_tokens`? must be|`?inputs`? must have less than \d+ tokens",
    r"total tokens of image and text exceed",
    r"input tokens exceed the configured limit",
    r"total length of all messages is too long",
    r"context length (?:is|of) only \d+",
    r"too large for model with \d+ maximum context",
    r"too many input tokens|token limit exceeded|prompt has \d+ tokens, but",
    r"no user query found in messages",
    r"prompt.{0,4}(?:超长|过长)|token.{0,6}(?:超过|超出).{0,6}(?:上限|限制)",
    r"上下文.{0,12}(?:超|过长)|超.{0,8}上下文|(?:输入|提示).{0,8}(?:过长|太长|超长|超过.{0,8}(?:长度|限制))",
)
NOT_OVERFLOW = _any(r"(?:context window|context length|context) (?:size )?must be (?:positive|greater)")

# What llama.cpp and Groq say when the *model* wrote a call that does not fit the call format.
BAD_CALL_FORMAT = _any(
    r"does not match the expected [\w-]+ format",
    r"tool_use_failed|failed to call a function",
    r"failed to parse (?:tool|function)[ -]?call",
    r"failed to parse (?:input|messages).*tool",
    r"the model produced output that",
    r"error parsing tool call",
)
# Google answers a wrong key with 400.
BAD_KEY = _any(r"api key not valid|api key expired|API_KEY_INVALID")
# A local server's word for a model that it cannot load; the next try would end alike.
NO_ROOM = _any(
    r"requires more (?:system )?memory",
    r"insufficient system resources",
    r"failed to load (?:the )?model",
)
# LM Studio's words, with status 400, for a model that died or was sent away under the request.
GONE = _any(r"the model has crashed|model (?:was )?unloaded")
# LM Studio's word, with status 200, for an address without /v1.
NO_ENDPOINT = _any(r"unexpected endpoint or method")
UNKNOWN_MODEL = _any(
    r"model[^.]{0,80}(?:not found|does not exist|not exist|is not (?:available|supported|a valid)|unknown)",
    r"(?:unknown|invalid|no such|unsupported) model|model_not_found|invalid model (?:name|id)",
    r"no endpoints found for|try pulling it first",
    r"no models loaded|multiple models are loaded",
    r"not activated the model",
    r"模型.{0,10}(?:不存在|未找到|无效)",
)
# The provider's filter refused the request; the same request is refused again.
FILTERED = _any(
    r"content[ _-]?(?:filter|policy|management policy)|responsible[ _]ai|data_?inspection_?failed",
    r"inappropriate content",
    r"content exists risk|considered high risk|sensitive ?content|(?:input|output) new_sensitive|was flagged",
    r"敏感(?:内容|信息|词)|不安全.{0,8}内容|内容安全|违规内容|涉黄|涉政",
)
NO_IMAGES = _any(
    r"image input is not supported|does(?: not|n't) support images?|no endpoints found that support image",
    r"image_url.{0,40}(?:not supported|unsupported|unknown variant)",
    r"model.{0,30}(?:not|n't) (?:support|accept).{0,20}(?:image|vision|multimodal)",
    r"image input modality is not enabled|missing data required for image input",
)

NO_TOOLS = _any(
    r"(?:not|n't) support (?!tool use in stream)(?:the use of )?(?:tools?\b|tool[ _-]?(?:use|call)|functions?\b)",
    r"(?<!parallel[ _])\b(?:tools|functions|(?:tool|function)[ _-]?(?:use|calls?|calling))[`'\"]?"
    r" (?:is|are) not (?:supported|enabled|available)",
    r"auto[`'\"]? tool choice requires",
    r"tools? param(?:eter)? requires",
    r"no endpoints found that support tool use",
    r"unable to generate (?:tool )?parser for this template",
    r"(?:unsupported|unrecognized|unknown|unexpected)[\w ]{0,20} (?:parameter|field|argument)[^.]{0,24}\btools\b",
    r"(?:unsupported|unrecognized|unknown|unexpected) (?:parameter|field|argument)[^.]{0,24}\btools\b",
    r"(?:工具|函数)调用.{0,8}不支持|不支持.{0,8}(?:工具|函数)(?:调用)?",
)
# Options a server may refuse; the option is learned and left out (see `LLMAdapter.correct`).
OPTIONS: tuple[tuple[str, re.Pattern[str]], ...] = (
    (
        "max_tokens",
        _any(
            r"max_tokens\W.{0,80}(?:max_completion_tokens|not supported|unsupported)",
            r"unsupported.{0,30}'max_tokens'",
        ),
    ),
    (
        "max_completion_tokens",
        _any(
            r"max_completion_tokens.{0,60}(?:not |un|extra|forbidden)",
            r"(?:un|not ).{0,40}max_completion_tokens",
        ),
    ),
    (
        "temperature",
        _any(
            r"temperature.{0,80}(?:not support|unsupported|deprecated|only the default|may only|must be 1)",
            r"(?:unsupported|n[o']t support).{0,60}temperature",
        ),
    ),
    (
        "stop",
        _any(
            r"(?<!\w)stop(?:_?sequences)?\b['\"`]?.{0,60}(?:not (?:support|permit|allow)|unsupported|unrecog)",
            r"(?:unsupported|n[o']t support|unrecognized|unknown).{0,40}\bstop(?:_?sequences)?\b",
        ),
    ),
    ("stream_options", _any(r"stream_options")),
    ("parallel_tool_calls", _any(r"parallel_tool_calls")),
    ("tool_choice", _any(r"tool_?choice")),
    ("streaming", _any(r"n't support (?:tool use in )?streaming|(?:tool use in )?streaming.{0,20} not support")),
    ("cache", _any(r"cache_?point|cache_control|prompt caching")),
    ("reasoning_summary", _any(r"reasoning[._]summar|reasoning summar")),
    (
        "reasoning_effort",
        _any(
            r"reasoning_effort|reasoning\.effort",
            r"thinking.{0,20} is not (?:enabled|supported)|does not support thinking",
            r"thinking budget \d+ is invalid|only works in thinking mode|think value .{0,20}is not supported",
        ),
    ),
    (
        "response_format",
        _any(
            r"response_format|json_schema|text_?\.?format|outputConfig",
            r"response_?json_?schema|response_?schema|response[ _]?mime[ _]?type",
        ),
    ),
    ("include", _any(r"encrypted content is not supported|(?:parameter|argument|value).{0,12}\binclude\b")),
    ("replay", _any(r"invalid_encrypted_content|encrypted content .{0,80}could not be")),
    (
        "system",
        _any(
            r"system (?:role|message|prompt)s?.{0,40}(?:not |un)",
            r"(?:unsupported|does not support|n[o']t support).{0,40}['\"`]?system\b",
            r"developer instruction is not enabled",
        ),
    ),
)

REQUEST_ID_HEADERS = (
    "x-request-id",
    "request-id",  # Anthropic
    "x-deepseek-request-id",
    "x-amzn-requestid",
    "x-goog-request-id",
    "apim-request-id",  # Azure
    "x-ms-request-id",
    "mistral-correlation-id",
    "x-siliconcloud-trace-id",
    "x-tt-logid",  # Volcengine
    "x-log-id",  # Zhipu
    "trace-id",  # MiniMax
    "x-trace-id",
    "cf-ray",
)
"""Under which names vendors send the number of a request, most telling first; a CDN's own number comes last."""


class RefusedOption(LLMError):
    """`INVALID_REQUEST` that names options the server does not take, likeliest first; keys of `OPTIONS`."""

    options: tuple[str, ...] = ()


def classify(
    status: int,
    body: bytes,
    headers: Mapping[str, str] | None = None,
    *,
    who: str = "the provider",
    now: datetime | None = None,
) -> LLMError:
    """The error of a reply with this status. `headers` has lower-case names; `who` names the account in the text.

    Shapes understood: `{error: {message, type, code}}`, `{error: "…"}`, `{object: "error", message}`, `{message}`,
    `{detail}`, `{code, msg}`, HTML and plain text.
    """
    headers = headers or {}
    words = _words(body)
    kind = headers.get("x-amzn-errortype", "").partition(":")[0]
    code = classify_code(status, f"{kind} {words.detail}".strip(), told=words.told)
    shown = words.message or f"HTTP {status}{' with a web page' if words.html else ''}"
    text = f"{who} answered {status}: {shown}" if words.message else f"{who} answered {shown}"
    said = f"{words.message}\n{body[:65536].decode('utf-8', 'replace')}"  # the JSON itself hides what is not ASCII
    wait = retry_after_s(headers, now=now) or told_wait_s(said)
    if wait is None and code == "RATE_LIMIT":
        wait = exhausted_s(headers, now=now)
    hint = HINTS.get(code, "")
    if code == "RATE_LIMIT" and wait is not None:
        hint = f"{who} asks to wait {wait:g} s; wait, or use another model"
    elif code == "CONTEXT_WINDOW_EXCEEDED" and not body.strip():
        hint = f"a reply without a body usually means that the request is too long; {hint}"
    elif alone_too_large(words.detail):
        hint = "this request alone is above the account's tokens a minute: lower max_tokens, or shorten it"
    elif NO_ROOM.search(words.detail):
        hint = "free memory at the server, or choose a smaller model"
    options = [name for name, pattern in OPTIONS if pattern.search(words.detail)]
    error = RefusedOption if options and code == "INVALID_REQUEST" else LLMError
    found = error(
        text,
        code,
        status=status if 100 <= status <= 599 else None,
        retry_after_s=wait,
        request_id=next((headers[name] for name in REQUEST_ID_HEADERS if headers.get(name)), None) or words.request_id,
        hint=hint,
    )
    if isinstance(found, RefusedOption):
        found.options = tuple(options)
    return found


HINTS: dict[str, str] = {
    "AUTH": "check api_key (or the vendor's key variable) and that this key may use the model",
    "QUOTA": "top up the account, or choose another model with --llm or --model",
    "RATE_LIMIT": "wait, or use another model",
    "CONTEXT_WINDOW_EXCEEDED": "shorten the task or use a model with a larger context window",
    "UNKNOWN_MODEL": "check `model`; `python main.py models` lists what is reachable",
    "ENDPOINT": "check base_url and api_type; for chat completions the address usually ends in /v1",
    "HTTP_404": "check base_url and `model`",
    "SERVER": "try again later, or use another model",
    "UNSUPPORTED_TOOLS": 'set tools = "auto" under [llm], or use a model that calls tools',
    "CONTENT_FILTER": "word the task otherwise, or use another provider",
    "UNSUPPORTED_CONTENT": "use a model with vision, or leave the image out",
}


def classify_code(status: int, detail: str, *, told: bool = True) -> str:
    """The code of a status and the provider's words (error code, type and message joined by spaces).

    `told` is false when the body held no error object, which for a missing address means that it is no model API.
    """
    if alone_too_large(detail):
        return "CONTEXT_WINDOW_EXCEEDED"
    throttled = bool(THROTTLED.search(detail))
    quota = _is_quota(detail, throttled=throttled)
    if status in (400, 403, 422) and not throttled and not quota and FILTERED.search(detail):
        return "CONTENT_FILTER"
    if status == 401 or (status == 403 and not quota and not throttled) or (status == 400 and BAD_KEY.search(detail)):
        return "AUTH"
    if quota or status == 402:
        return "QUOTA"
    if status == 429 or (throttled and status in (400, 403, 413)):
        return "RATE_LIMIT"
    if status in (400, 404, 500) and BAD_CALL_FORMAT.search(detail):
        return "INVALID_TOOL_CALL"
    if status in (400, 404, 422, 500, 501) and NO_TOOLS.search(detail):
        return "UNSUPPORTED_TOOLS"
    # Cerebras refuses a request that is too long without any word.
    if status in (400, 413, 422, 500) and (is_overflow(detail) or (status in (400, 413) and not detail.strip())):
        return "CONTEXT_WINDOW_EXCEEDED"
    if status in (400, 404, 415, 422, 500) and NO_IMAGES.search(detail):
        return "UNSUPPORTED_CONTENT"
    if status in (400, 404, 500) and NO_ROOM.search(detail):
        return "INVALID_REQUEST"
    if status in (400, 404, 422) and UNKNOWN_MODEL.search(detail):
        return "UNKNOWN_MODEL"
    if status in (405, 415) or (status == 404 and not told) or NO_ENDPOINT.search(detail):
        return "ENDPOINT"
    if status == 408:
        return "TIMEOUT"
    if status in (400, 413, 422):
        return "SERVER" if GONE.search(detail) else "INVALID_REQUEST"
    # 409: a conversation that another request holds; 424: Bedrock's word for a model that failed; 425: too early.
    return "SERVER" if status >= 500 or status in (409, 424, 425) else f"HTTP_{status}"


def alone_too_large(detail: str) -> bool:
    """True when a limit of tokens a minute is below this one request: only a shorter request can help."""
    found = PER_MINUTE.search(detail)
    return bool(found) and int(found[2].replace(",", "")) > int(found[1].replace(",", ""))


def is_overflow(detail: str) -> bool:
    """True when the words say that the request is longer than the context window."""
    if OVERFLOW_CODES.search(detail):
        return True
    if THROTTLED.search(detail) or NOT_OVERFLOW.search(detail):
        return False
    return bool(OVERFLOW.search(detail))


def is_silent_overflow(finish: FinishReason, usage: Usage, window: int) -> bool:
    """True when only the usage shows that a request was too long: the server cut it, or had no room to answer."""
    if finish == "max-tokens":
        return usage.output_tokens == 0 and usage.total_input >= 0.99 * window
    return finish == "stop" and usage.total_input > window


def _is_quota(detail: str, *, throttled: bool) -> bool:
    if PER_DAY.search(detail):
        return True
    if NOT_QUOTA.search(detail) or not QUOTA.search(detail):
        return False
    return not throttled or bool(MONEY.search(detail) and not SOON.search(detail))


def in_band(payload: Table, *, who: str) -> LLMError | None:
    """The error inside a reply with status 200 (a JSON body or a stream event), or None when there is none."""
    error = payload.get("error")
    base = _table(payload.get("base_resp")) or {}
    number = base.get("status_code") or (payload.get("error_code") if payload.get("error_msg") else None)
    if not error and payload.get("object") != "error" and not number:
        return None
    code = IN_BAND.get(number) if isinstance(number, int) else (_table(error) or payload).get("code")
    body = json.dumps(payload, ensure_ascii=False).encode("utf-8", "replace")
    if isinstance(code, int | str) and re.fullmatch(r"[1-5][0-9]{2}", str(code)):
        return classify(int(code), body, who=who)
    words = _words(body)
    found = classify(next((status for status, said in GUESSES if said.search(words.detail)), 400), body, who=who)
    text = f"{who} broke off: {words.message or words.detail[:200] or 'without a reason'}"
    return LLMError(text, found.code, hint=found.hint)


GUESSES: tuple[tuple[int, re.Pattern[str]], ...] = (
    (429, THROTTLED),
    (401, _any(r"invalid.{0,10}(?:api.?key|authentication)|unauthorized")),
    (
        503,
        _any(
            r"overloaded|server.?error|\bapi_error\b|internal|unavailable|upstream|timeout",
            r"while running the model|runner (?:process )?(?:has )?(?:unexpectedly|terminated|stopped)",
        ),
    ),
)
"""The status that an error inside a reply would have had, by its words; else it is a bad request."""

IN_BAND: dict[int, int] = {
    # MiniMax, base_resp.status_code
    1000: 500, 1001: 504, 1002: 429, 1004: 401, 1008: 402, 1013: 500, 1024: 500, 1033: 500, 1039: 429, 1041: 429,
    2045: 429, 2049: 401, 2056: 402,
    # Baidu Qianfan, error_code
    2: 503, 4: 429, 6: 403, 13: 401, 14: 401, 15: 401, 17: 402, 18: 429, 19: 402, 110: 401, 111: 401, 336100: 503,
    336501: 429, 336502: 429,
}  # fmt: skip
"""The status that a vendor's own number inside a reply with status 200 stands for."""

Table = dict[str, Any]


@dataclass(frozen=True, slots=True)
class _Words:
    """What a body says: a `message` for people, the `detail` to classify; `told` = by an error object."""

    message: str
    detail: str
    html: bool = False
    told: bool = False
    request_id: str | None = None


def _words(body: bytes) -> _Words:
    text = body[:65536].decode("utf-8", "replace").lstrip("\ufeff").strip()
    try:
        data = json.loads(text)
    except (ValueError, RecursionError):
        plain = re.sub(r"\s+", " ", _MARKUP.sub(" ", text[:8192])).strip()[:200]
        html = text.startswith("<")
        return _Words("" if html else plain, plain, html=html)
    table = _table(next(iter(_items(data)), None) if isinstance(data, list) else data)
    if table is None:
        return _Words(text[:200] if data else "", text[:2000] if data else "")
    return _from_object(table, text)


_MARKUP = re.compile(r"<(script|style)\b.*?</\1>|<[^<>]*>", re.IGNORECASE | re.DOTALL)
_MESSAGE_KEYS = ("message", "msg", "detail", "error_msg", "status_msg", "errors")


def _from_object(data: Table, text: str) -> _Words:
    error = data.get("error")
    holder = _table(error) or _table(data.get("base_resp")) or data
    message = (
        error if isinstance(error, str) else next((_flat(holder[key]) for key in _MESSAGE_KEYS if holder.get(key)), "")
    )
    raw = (_table(holder.get("metadata")) or {}).get("raw")
    if isinstance(raw, str) and raw and raw not in message:
        message = f"{message} ({raw[:300]})"
    message = _unpacked(message)
    parts = (holder.get("code"), holder.get("type"), holder.get("param"), message)
    detail = " ".join(str(part) for part in (*parts, *_quota_ids(holder)) if part not in (None, ""))
    return _Words(
        message[:1000], detail or text[:2000], told=bool(message) and message != NOT_FOUND, request_id=_request_id(data)
    )


def _request_id(data: Table) -> str | None:
    """Anthropic, DashScope and others repeat the number of the request in the body."""
    found = data.get("request_id") or data.get("requestId")
    return found[:200] if isinstance(found, str) and found.strip() else None


def _quota_ids(error: Table) -> list[str]:
    """The names of the limits that were hit (google.rpc.QuotaFailure), such as `…RequestsPerDayPerProject…`."""
    details = [_table(each) or {} for each in _items(error.get("details"))]
    broken = [_table(each) or {} for detail in details for each in _items(detail.get("violations"))]
    return [f"quota_id={each['quotaId']}" for each in broken if each.get("quotaId")]


NOT_FOUND = "Not Found"
"""What web frameworks say in an object of their own about an address that they do not serve."""


def _unpacked(message: str) -> str:
    """The words inside a message that is itself the JSON text of an error, as gateways pass them on."""
    if not message.startswith("{"):
        return message
    try:
        inner = _table(json.loads(message))
    except (ValueError, RecursionError):
        return message
    return _from_object(inner, message).message or message if inner else message


def _flat(value: JSON) -> str:
    """A readable text of a message that may be a list of entries, as validation errors are."""
    if isinstance(value, list):
        return "; ".join(_flat(item) for item in _items(value))
    table = _table(value)
    if table is None:
        return str(value)
    place = ".".join(str(part) for part in _items(table.get("loc")))
    words = str(table.get("msg") or table.get("message") or json.dumps(table, ensure_ascii=False))
    return f"{place}: {words}" if place else words


def _table(value: JSON) -> Table | None:
    return cast("Table", value) if isinstance(value, dict) else None


def _items(value: JSON) -> list[JSON]:
    return cast("list[JSON]", value) if isinstance(value, list) else []
