"""The shapes in which providers and gateways wrap an error; data for `status(code, error_body(shape, ...))`."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

ERROR_SHAPES: dict[str, Callable[[str, Any], Any]] = {
    "openai": lambda message, code: {"error": {"message": message, "type": "error", "param": None, "code": code}},
    "openrouter": lambda message, code: {"error": {"message": message, "code": code, "metadata": {"raw": message}}},
    "string": lambda message, code: {"error": message},  # Ollama
    "vllm": lambda message, code: {"object": "error", "message": message, "type": "BadRequestError", "code": code},
    "anthropic": lambda message, code: {"type": "error", "error": {"type": code, "message": message}},
    "gemini": lambda message, code: {"error": {"code": code, "message": message, "status": "INVALID_ARGUMENT"}},
    "gemini_list": lambda message, code: [{"error": {"code": code, "message": message, "status": "FAILED"}}],
    "detail": lambda message, code: {"detail": message},  # FastAPI
    "detail_list": lambda message, code: {"detail": [{"loc": ["body", "messages"], "msg": message, "type": "value"}]},
    "message": lambda message, code: {"message": message, "code": code},
    "minimax": lambda message, code: {"base_resp": {"status_code": code, "status_msg": message}, "choices": None},
    "errors": lambda message, code: {"errors": [{"message": message, "code": code}], "success": False},
    "nested_json": lambda message, code: {
        "error": {"message": json.dumps({"error": {"message": message}}), "code": code}
    },
    "text": lambda message, code: message,
    "html": lambda message, code: f"<html><head><title>{code}</title></head><body><h1>{message}</h1></body></html>",
    "empty": lambda message, code: "",
    "null": lambda message, code: "null",
}


def error_body(shape: str, message: str, code: Any = None) -> Any:
    """An error body of a named shape."""
    return ERROR_SHAPES[shape](message, code)
