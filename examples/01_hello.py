"""Ask a model for text. Runs offline with the scripted model; for a real one, use `load_config()` as shown below.

from app.config.load import load_config
pool = LLMPool(load_config().llm)
"""

import asyncio

from app.config.settings import LLMSettings
from app.llm.adapters.scripted import ScriptedAdapter, say
from app.llm.pool import LLMPool


async def main() -> None:
    settings = {"default": LLMSettings(name="default", model="scripted", api_type="test")}
    pool = LLMPool(settings, adapters={"default": ScriptedAdapter([say("Bonjour, tout le monde.")])})
    print(await pool.get().ask("Translate into French: hello, world"))
    await pool.close()


asyncio.run(main())
