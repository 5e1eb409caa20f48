"""Run against an installed wheel, from outside the source tree: is everything in it that belongs?"""

import asyncio
import tempfile
from pathlib import Path

import tomldiary
from tomldiary import Diary, MemoryWriter

assert "site-packages" in tomldiary.__file__, tomldiary.__file__
assert (Path(tomldiary.__file__).parent / "py.typed").exists()

with tempfile.TemporaryDirectory() as folder:
    diary = Diary(folder, agent="rules")

    async def main() -> None:
        async with MemoryWriter(diary) as writer:
            await writer.submit("alice", "s1", "I'm allergic to walnuts.", "Noted.")

    asyncio.run(main())
    alice = Diary(folder, agent="rules").user("alice")
    assert alice.recall("what am I allergic to?")[0].text == "I'm allergic to walnuts."
    assert "walnuts" in alice.render()

for adapter in ("tomldiary_langgraph", "tomldiary_langchain", "tomldiary_pydantic_ai"):
    said = ""
    try:
        __import__(adapter)
    except ImportError as error:
        said = str(error)
    assert 'pip install "tomldiary-kit[' in said, (adapter, said)
print("smoke test passed")  # noqa: T201 - the output of this script
