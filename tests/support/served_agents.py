"""Deep agents of the server that test_langgraph_server starts: one has a task done in the background by the other."""

from deepagents import create_deep_agent
from langchain_core.messages import AIMessage

from scripted_chat import Scripted, calling
from served_memory import diary, writer
from tomldiary_langchain import DiaryMiddleware

memory = DiaryMiddleware(diary, writer=writer)
found = AIMessage("I love pizza. Here are three places.")
helping = create_deep_agent(Scripted(answers=[found]), middleware=[memory])
task = {"description": "I prefer places in Rome.", "subagent_type": "helper"}
asking = create_deep_agent(
    Scripted(
        answers=[calling(("start_async_task", task)), AIMessage("Started."), AIMessage("Told.")]
    ),
    middleware=[memory],
    subagents=[{"name": "helper", "description": "finds places", "graph_id": "helping"}],
)
