"""An agent in a tool of another framework's agent: its prompt is no words of the user."""

from __future__ import annotations

import asyncio
import threading

import pytest
from langchain.agents import create_agent
from langchain_core.messages import AIMessage, HumanMessage
from langchain_core.tools import tool
from langgraph.graph import START, MessagesState, StateGraph
from pydantic_ai import Agent
from pydantic_ai.messages import ModelResponse, TextPart, ToolCallPart
from pydantic_ai.models.function import FunctionModel

from scripted_chat import Scripted, calling
from tomldiary import Diary
from tomldiary_langchain import DiaryMiddleware
from tomldiary_langgraph import extract_node, submit_node
from tomldiary_pydantic_ai import AgentMemoryToolset, DiaryCapability

CONFIG = {"configurable": {"thread_id": "t1"}}
PROMPT = "what a model asks another one"


class Heard(list[str]):
    """An extractor that notes what the user said in each turn."""

    def __call__(self, _message, *, deps):
        self.append(deps.user_msg)


@pytest.fixture
def heard():
    return Heard()


@pytest.fixture
def diary(tmp_path, heard):
    return Diary(tmp_path, agent=heard)


def pydantic_agent(memory, *answers):
    script = iter(answers or ["The answer."])

    def model(_messages, _info):
        answer = next(script)
        return ModelResponse([TextPart(answer) if isinstance(answer, str) else answer])

    return Agent(FunctionModel(model), capabilities=[memory])


class Named(Scripted):
    """Numbers its answers."""

    def _generate(self, *given, **options):
        result = super()._generate(*given, **options)
        result.generations[0].message.id = f"answer {len(self.asked)}"
        return result


def langchain_agent(memory, *calls):
    return create_agent(Named(answers=[*calls, AIMessage("The answer.")]), middleware=[memory])


def graph_of(node):
    def answer(_state):
        return {"messages": [AIMessage("The answer.")]}

    graph = StateGraph(MessagesState)
    graph.add_node("answer", answer)
    graph.add_node("memory", node)
    graph.add_edge(START, "answer")
    graph.add_edge("answer", "memory")
    return graph.compile()


@pytest.mark.parametrize("by", ["a coroutine", "a function"])
def test_a_pydantic_ai_agent_in_a_tool_of_langchain_is_no_turn(diary, heard, by):
    inner = DiaryCapability(diary, "ann")
    agent = pydantic_agent(inner)

    @tool
    async def ask(question: str) -> str:
        """Ask."""
        return (await agent.run(question)).output

    @tool("ask")
    def ask_now(question: str) -> str:
        """Ask."""
        return asyncio.run(agent.run(question)).output

    call = {"name": "ask", "args": {"question": PROMPT}, "id": "1"}
    model = Scripted(answers=[AIMessage("", tool_calls=[call]), AIMessage("Done.")])
    outer = DiaryMiddleware(diary, user_id="ann")
    host = create_agent(model, [ask if by == "a coroutine" else ask_now], middleware=[outer])
    said = {"messages": [HumanMessage("I like tea.")]}
    if by == "a coroutine":
        done = asyncio.run(host.ainvoke(said, CONFIG))
    else:
        done = host.invoke(said, CONFIG)
    assert done["messages"][-2].content == "The answer."
    outer.writer.close_sync()
    inner.writer.close_sync()
    assert heard == ["I like tea."]


def test_a_pydantic_ai_agent_in_a_node_of_langgraph_is_a_turn(diary, heard):
    memory = DiaryCapability(diary, "ann")
    agent = pydantic_agent(memory)
    extract_node(diary, user_id="ann")  # from here on, the adapter knows of tools

    async def chat(state):
        answer = await agent.run(state["messages"][-1].content)
        return {"messages": [AIMessage(answer.output)]}

    graph = StateGraph(MessagesState)
    graph.add_node("chat", chat)
    graph.add_edge(START, "chat")
    asyncio.run(graph.compile().ainvoke({"messages": [HumanMessage("I like tea.")]}, CONFIG))
    memory.writer.close_sync()
    assert heard == ["I like tea."]


@pytest.mark.parametrize("inner", ["agent", "extract", "submit"])
def test_a_graph_in_a_tool_of_pydantic_ai_is_no_turn(diary, heard, inner):
    memory = DiaryCapability(diary, "ann")
    if inner == "agent":
        graph = langchain_agent(DiaryMiddleware(diary, user_id="ann", writer=memory.writer))
    elif inner == "extract":
        graph = graph_of(extract_node(diary, user_id="ann"))
    else:
        graph = graph_of(submit_node(memory.writer, user_id="ann"))
    agent = pydantic_agent(memory, ToolCallPart("ask", {"question": PROMPT}), "Done.")

    @agent.tool_plain
    async def ask(question: str) -> str:
        done = await graph.ainvoke({"messages": [HumanMessage(question)]}, CONFIG)
        return done["messages"][-1].content

    assert asyncio.run(agent.run("I like tea.")).output == "Done."
    memory.writer.flush()
    assert heard == ["I like tea."]
    asyncio.run(graph.ainvoke({"messages": [HumanMessage("I like jazz.")]}, CONFIG))
    memory.writer.close_sync()
    assert heard == ["I like tea.", "I like jazz."]


@pytest.mark.parametrize("host", ["langchain", "langgraph", "pydantic-ai"])
def test_no_id_of_a_turn_or_a_call_is_a_digest_of_a_redacted_word(tmp_path, host):
    """A reader of the folder could try all PINs with the ids of messages or runs; some are stored as the session."""
    found = []
    for pin in ("4711", "8215"):
        diary, said = Diary(tmp_path / pin, agent="rules", redact=True), f"My PIN: {pin}"
        asked = {"messages": [HumanMessage(said, id="known")]}
        if host == "langgraph":
            graph_of(extract_node(diary, user_id="ann")).invoke(asked, CONFIG)
        elif host == "langchain":
            memory = DiaryMiddleware(diary, user_id="ann", tools="all")
            call = calling(("remember", {"text": said, "category": "work"}))
            langchain_agent(memory, call).invoke(asked)
            memory.writer.close_sync()
        else:
            memory = DiaryCapability(diary, "ann")
            call = ToolCallPart("remember", {"text": said, "category": "work"}, tool_call_id="1")
            agent = pydantic_agent(memory, call, "Done.")
            asyncio.run(agent.run(said, run_id="known", conversation_id="t"))
            memory.writer.close_sync()
        found.append([*diary.engine.done_operations("ann")])
    assert found[0] == found[1]
    assert len(found[0]) == (1 if host == "langgraph" else 2)


@pytest.mark.parametrize("host", ["langchain", "langgraph", "pydantic-ai"])
def test_a_function_that_fails_to_redact_a_turn_ends_no_run(tmp_path, host):
    def redact(text):
        if "tea" in text:
            raise RuntimeError("no model is loaded")
        return text

    diary = Diary(tmp_path, agent="rules", redact=redact)
    asked = {"messages": [HumanMessage("I like tea.", id="known")]}
    if host == "langgraph":
        node = extract_node(diary, user_id="ann", on_error="ignore")
        done = graph_of(node).invoke(asked, CONFIG)["messages"][-1].content
    elif host == "langchain":
        memory = DiaryMiddleware(diary, user_id="ann", on_error="ignore", tools="all")
        call = calling(("remember", {"text": "tea", "category": "work"}))
        done = langchain_agent(memory, call).invoke(asked)["messages"][-1].content
    else:
        agent = pydantic_agent(DiaryCapability(diary, "ann"))
        done = asyncio.run(agent.run("I like tea.")).output
    assert done == "The answer."


def test_pydantic_ai_redacts_no_call_on_the_event_loop_and_no_turn_in_a_workflow(tmp_path):
    """A function that redacts may be slow, and an engine runs only the durable operations outside of the workflow."""
    redacted, earlier = list[tuple[str, bool]](), list[tuple[str, bool]]()

    def redact(text):
        redacted.append((text, threading.current_thread() is threading.main_thread()))
        return text

    class Durable(DiaryCapability):
        async def _submit(self, *given):
            earlier.extend(redacted)
            return await super()._submit(*given)

    memory = Durable(Diary(tmp_path, agent="rules", redact=redact), "ann")
    notes = AgentMemoryToolset(memory_dir=memory.diary, user_id="ann")
    calls = [
        ToolCallPart("remember", {"text": "I like tea.", "category": "work"}, tool_call_id="1"),
        ToolCallPart("write_memory", {"content": "Likes tea."}, tool_call_id="2"),
    ]
    agent = pydantic_agent(memory, *calls, "Done.")
    asyncio.run(agent.run("I like tea.", toolsets=[notes]))
    memory.writer.close_sync()
    assert {("I like tea.", False), ("Likes tea.", False)} <= {*earlier}
    assert not any(is_here for _, is_here in earlier)


def test_a_langchain_agent_redacts_no_call_on_the_event_loop(tmp_path):
    redacted = set[tuple[str, bool]]()

    def redact(text):
        redacted.add((text, threading.current_thread() is threading.main_thread()))
        return text

    memory = DiaryMiddleware(
        Diary(tmp_path, agent="rules", redact=redact), user_id="ann", tools="all"
    )
    call = calling(("remember", {"text": "likes tea", "category": "work"}))
    asked = {"messages": [HumanMessage("I like tea.", id="known")]}
    asyncio.run(langchain_agent(memory, call).ainvoke(asked))
    memory.writer.close_sync()
    assert [is_here for text, is_here in redacted if text == "likes tea"] == [False]
