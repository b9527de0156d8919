"""Tools made of functions: their schema, hidden context, and awaited results."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from app.schema.message import ToolCallBlock
from app.schema.run import RunContext
from app.tools.base import tool
from app.tools.toolbox import Toolbox


@tool(name="scale", effect="idempotent")
async def scale_it(
    ctx: RunContext,
    factor: Annotated[int, Field(ge=1, description="how much")],
    unit: Literal["m", "km"] = "m",
    title: str | None = None,
) -> str:
    """Scale a length.

    A second paragraph.
    """
    return f"{factor}{unit} {title} {ctx.run}"


def test_the_schema_of_a_function() -> None:
    assert (scale_it.spec.name, scale_it.spec.description) == ("scale", "Scale a length.\n\nA second paragraph.")
    assert scale_it.spec.parameters == {
        "type": "object",
        "properties": {
            "factor": {"type": "integer", "minimum": 1, "description": "how much"},
            "unit": {"type": "string", "enum": ["m", "km"], "default": "m"},
            "title": {"type": "string"},
        },
        "required": ["factor"],
    }


async def test_the_context_is_handed_in() -> None:
    ctx = RunContext()
    outcome = await Toolbox(scale_it).call(ToolCallBlock("c", "scale", '{"factor": "2"}'), ctx)
    assert outcome.block.text == f"2m None {ctx.run}"
