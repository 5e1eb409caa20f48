"""Three extractors for one diary: a model that calls tools, a model that only writes text, and no model.

Shows `ChatModelExtractor`. The format of the file does not depend on the extractor.
The models are scripted, so it runs offline. Run: python examples/langchain_extractor.py [FOLDER]
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from langchain_core.language_models import GenericFakeChatModel
from langchain_core.messages import AIMessage, BaseMessage

from tomldiary import Diary
from tomldiary_langchain import ChatModelExtractor

DONE = AIMessage("done")


class Calling(GenericFakeChatModel):
    """Stands in for a model that calls tools."""

    def bind_tools(self, tools: Any, **_kwargs: Any) -> Any:
        """Print the number of tools; the answers are scripted."""
        print(f"  offered {len(tools)} tools")
        return self


def call(**arguments: str) -> AIMessage:
    """Return a message that calls a tool."""
    return AIMessage("", tool_calls=[{"name": "upsert_preference", "args": arguments, "id": "1"}])


def write(**arguments: str) -> AIMessage:
    """Return a message that contains a tool call as JSON text."""
    return AIMessage(json.dumps({"calls": [{"tool": "upsert_preference", "arguments": arguments}]}))


def scripted(*answers: BaseMessage) -> Any:
    """Return an iterator over the answers of a model."""
    return iter(answers)


def main(folder: Path) -> None:
    """Let three extractors read one turn each."""
    large = Calling(messages=scripted(call(category="likes", text="rye bread"), DONE))
    small = GenericFakeChatModel(
        messages=scripted(write(category="dislikes", text="cold soup"), AIMessage('{"calls": []}'))
    )
    turns = [
        ("a model that calls tools", large, "Rye bread, as always!"),
        ("a model that only writes", ChatModelExtractor(small, max_rounds=4), "No cold soup."),
        ("rules, without a model", "rules", "I live in Porto."),
    ]
    for what, agent, text in turns:
        print(what)
        diary = Diary(folder, agent=agent)
        diary.user("ida").add_turn(text, "Of course.", session_id="lunch")
    for category, items in Diary(folder).user("ida").preferences().items():
        for key, item in items.items():
            print(f"{category}/{key}: {item.text}")


if __name__ == "__main__":
    with TemporaryDirectory() as temporary:
        main(Path(sys.argv[1] if len(sys.argv) > 1 else temporary))
