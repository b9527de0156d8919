"""Give the agent a tool of your own: a function with a docstring and annotated parameters."""

import asyncio
import tempfile

from app.build import build_agent, build_app
from app.config.settings import Config
from app.llm.adapters.scripted import ScriptedAdapter, call, say
from app.tools.base import tool


@tool(effect="read")
def exchange_rate(base: str, quote: str = "EUR") -> str:
    """The exchange rate of two currencies."""
    rates = {("USD", "EUR"): 0.92, ("CHF", "EUR"): 1.06}
    return f"1 {base} = {rates[base, quote]} {quote}"


SCRIPT = [call("exchange_rate", {"base": "USD"}), say("One dollar is 0.92 euros.")]


async def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        app = build_app(
            Config(),
            workspace=folder,
            adapters={"default": ScriptedAdapter(SCRIPT)},
            extra_tools=[lambda app: exchange_rate],
        )
        result = await build_agent(app).run("What is a dollar in euros?")
        print(result.answer)
        await app.close()


asyncio.run(main())
