"""The routing table: registration, display facts, catalogues, model facts, defaults of a call."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from app.llm.adapters.base import ModelInfo, ProviderInfo, ReasoningInfo
from app.llm.retry import RetryPolicy
from app.llm.service import (
    LLMService,
)
from app.schema.request import CallConfig
from tests.llm.asking import shorts
from tests.llm.service_double import HI, Double, coded, drain, request, serve, thinking


@pytest.mark.parametrize("routes", [[], [""], ["y", ""]])
def test_r01_no_route_and_empty_route(routes: list[str]) -> None:
    service = LLMService()
    with coded("INVALID_ADAPTER"):
        service.register_adapter(routes, Double())
    assert service.list_providers() == ()


def test_r02_taken_route_registers_nothing() -> None:
    service = serve(Double(), "x")
    with coded("DUPLICATE_ADAPTER"):
        service.register_adapter(["y", "x"], Double())
    assert [info.id for info in service.list_providers()] == ["x"]


def test_r03_route_twice() -> None:
    service = LLMService()
    with coded("DUPLICATE_ADAPTER"):
        service.register_adapter(["x", "x"], Double())
    assert service.list_providers() == ()


@pytest.mark.parametrize("info", [lambda _: ProviderInfo("z", "name"), lambda route: ProviderInfo(route, "")])
def test_r04_metadata_of_another_route(info: Any) -> None:
    with coded("INVALID_ADAPTER"):
        LLMService().register_adapter(["x"], Double(info=info))


def test_r05_dispose_twice_and_register_again() -> None:
    service = LLMService()
    registration = service.register_adapter(["x", "y"], Double())
    registration.dispose()
    registration.dispose()
    assert service.list_providers() == ()
    other = Double()
    service.register_adapter(["x"], other)
    registration.dispose()
    assert service.adapter("x") is other


def test_r06_providers_in_the_order_of_registration() -> None:
    service = serve(Double(), "b", "a")
    service.register_adapter(["c"], Double())
    assert [info.id for info in service.list_providers()] == ["b", "a", "c"]


def test_r06_display_facts_are_captured() -> None:
    names = iter(["first", "second"])
    service = serve(Double(info=lambda route: ProviderInfo(route, next(names))))
    assert (service.provider_info("x").name, service.provider_info("x").name) == ("first", "first")


def test_r07_r08_policy_is_captured_and_has_a_default() -> None:
    policy = RetryPolicy(max_retries=1)
    assert serve(Double(), policy=policy).provider_retry_policy("x") is policy
    assert serve(Double()).provider_retry_policy("x") == RetryPolicy()
    with coded("NO_ADAPTER"):
        serve(Double()).provider_retry_policy("y")


@pytest.mark.parametrize(
    "models",
    [
        [ModelInfo("other", "a", "a")],
        [ModelInfo("x", "", "a")],
        [ModelInfo("x", "a", "")],
        [ModelInfo("x", "a", "a"), ModelInfo("x", "a", "b")],
        [ModelInfo("x", "a", "a", description=7)],  # type: ignore[arg-type]
    ],
)
async def test_r09_bad_catalogue(models: list[ModelInfo]) -> None:
    adapter = Double()
    adapter.models = models
    with coded("INVALID_CATALOG"):
        await serve(adapter).list_models("x")


async def test_r09_good_catalogue_and_unknown_route() -> None:
    adapter = Double()
    adapter.models = [ModelInfo("x", "b", "b", description="B"), ModelInfo("x", "a", "a")]
    service = serve(adapter)
    assert [model.id for model in await service.list_models("x")] == ["b", "a"]
    with coded("NO_ADAPTER"):
        await service.list_models("y")


async def test_r10_catalogue_is_no_whitelist() -> None:
    adapter = Double()
    adapter.models = [ModelInfo("x", "other", "other")]
    assert shorts(await drain(serve(adapter).stream(request()))) == HI


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"provider": "other"}, "INVALID_MODEL_INFO"),
        ({"name": ""}, "INVALID_MODEL_INFO"),
        ({"description": 7}, "INVALID_MODEL_INFO"),
        ({"context_window": 0}, "INVALID_MODEL_CONTEXT"),
        ({"context_window": 1.5}, "INVALID_MODEL_CONTEXT"),
        ({"context_window": True}, "INVALID_MODEL_CONTEXT"),
        ({"max_output_tokens": -1}, "INVALID_MODEL_MAX_TOKENS"),
        ({"reasoning": thinking()}, "INVALID_MODEL_REASONING"),
        ({"reasoning": thinking("a", "a")}, "INVALID_MODEL_REASONING"),
        ({"reasoning": thinking("")}, "INVALID_MODEL_REASONING"),
        ({"reasoning": thinking("a", default="b")}, "INVALID_MODEL_REASONING"),
    ],
)
async def test_r11_bad_model_facts(changes: dict[str, Any], code: str) -> None:
    adapter = Double()
    adapter.models = [replace(ModelInfo("x", "m", "m"), **changes)]
    with coded(code):
        await serve(adapter).resolve_model_info("x", "m")
    assert adapter.asked == 1


async def test_r11_facts_of_another_model() -> None:
    class Liar(Double):
        async def resolve_model(self, route: str, model: str) -> ModelInfo:
            return ModelInfo(route, f"{model}-other", "name")

    with coded("INVALID_MODEL_INFO"):
        await serve(Liar()).resolve_model_info("x", "m")


async def test_r12_unlisted_model_is_its_own_name() -> None:
    assert await serve(Double()).resolve_model_info("x", "m") == ModelInfo("x", "m", "m")


@pytest.mark.parametrize(("advertised", "effort"), [(thinking("high"), "HIGH"), (None, "high")])
async def test_r13_effort_that_is_not_advertised(advertised: ReasoningInfo | None, effort: str) -> None:
    adapter = Double()
    adapter.models = [ModelInfo("x", "m", "m", reasoning=advertised)]
    with coded("UNSUPPORTED_REASONING_EFFORT"):
        await drain(serve(adapter).stream(request(reasoning_effort=effort)))
    assert adapter.requests == []


async def test_r14_defaults_are_filled_in_and_nothing_else_is_copied() -> None:
    adapter = Double()
    service = serve(adapter)
    config = CallConfig("x", "m")
    assert await service.resolve_call_config(config) is config
    adapter.models = [ModelInfo("x", "m", "m", max_output_tokens=9, reasoning=thinking("low", "high", default="high"))]
    assert await service.resolve_call_config(config) == CallConfig("x", "m", "high", max_tokens=9)
    chosen = CallConfig("x", "m", "low", max_tokens=3)
    assert await service.resolve_call_config(chosen) is chosen


async def test_r15_explicit_cap_is_never_lowered() -> None:
    adapter = Double()
    adapter.models = [ModelInfo("x", "m", "m", max_output_tokens=1000)]
    assert (await serve(adapter).resolve_call_config(CallConfig("x", "m", max_tokens=999_999))).max_tokens == 999_999


def test_r16_r17_replace() -> None:
    service = LLMService()
    mine = service.register_adapter(["x"], Double())
    service.register_adapter(["taken"], Double())
    with coded("DUPLICATE_ADAPTER"):
        mine.replace(["y", "taken"])
    assert ([info.id for info in service.list_providers()], mine.routes) == (["x", "taken"], ("x",))
    mine.replace(["x", "z"])
    assert [info.id for info in service.list_providers()] == ["taken", "x", "z"]
    mine.replace([])
    mine.replace(["y"])
    mine.dispose()
    assert [info.id for info in service.list_providers()] == ["taken"]
    with coded("REGISTRATION_DISPOSED"):
        mine.replace(["y"])
