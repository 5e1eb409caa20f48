"""Answers from a person's diary: `DiaryRetriever` in a LangChain chain.

Shows that it works like any retriever, with `k`, scores and sources. One chain serves all users.
The model is scripted, so it runs offline. Run: python examples/langchain_rag.py [FOLDER]
"""

from __future__ import annotations

import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from langchain_core.language_models import SimpleChatModel
from langchain_core.output_parsers import StrOutputParser
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.runnables import RunnablePassthrough

from tomldiary import Diary
from tomldiary_langchain import DiaryRetriever

if TYPE_CHECKING:
    from langchain_core.documents import Document
    from langchain_core.messages import BaseMessage

SAID = {
    "monday": "I'm allergic to walnuts. I like window seats.",
    "tuesday": "I hate loud restaurants. I work as a nurse.",
}


class FirstLine(SimpleChatModel):
    """Stands in for a model: it answers with the first fact."""

    @property
    def _llm_type(self) -> str:
        return "first line"

    def _call(self, messages: list[BaseMessage], *_args: Any, **_kwargs: Any) -> str:
        facts = str(messages[0].text).split("Facts:\n")[1].splitlines()
        return f"You told me {facts[0]}" if facts else "You never told me."


def listed(found: list[Document]) -> str:
    """Return the facts, each with the turn it was extracted from."""
    return "\n".join(f"in {one.metadata['source']}: {one.page_content}" for one in found)


def main(folder: Path) -> None:
    """Fill a diary, and ask questions through a chain."""
    diary = Diary(folder, agent="rules")
    for session, message in SAID.items():
        diary.user("eva").add_turn(message, "Noted.", session_id=session)

    retriever = DiaryRetriever(diary=diary, k=2)
    prompt = ChatPromptTemplate.from_template("Answer: {question}\nFacts:\n{facts}")
    asked = {"question": RunnablePassthrough(), "facts": retriever | listed}
    chain = asked | prompt | FirstLine() | StrOutputParser()

    eva = {"configurable": {"user_id": "eva"}}  # set by the application, never by a model
    for question in ("Which restaurants do I avoid?", "Where do I like to sit, at the window?"):
        print(f"{question}\n  {chain.invoke(question, eva)}")
    print(f"Another user asks\n  {chain.invoke('walnuts', {'configurable': {'user_id': 'tom'}})}")

    best = retriever.invoke("walnuts", eva, k=1)[0]
    print(f"\n{best.metadata['id']} in {best.metadata['kind']}: score {best.metadata['score']:.2f}")


if __name__ == "__main__":
    with TemporaryDirectory() as temporary:
        main(Path(sys.argv[1] if len(sys.argv) > 1 else temporary))
