"""Each example runs as a program, warns of nothing, and prints what it promises."""

from __future__ import annotations

import os
import re
import tomllib
from pathlib import Path

import pytest

import programs
from processes import STRICT

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"
PATHS = os.pathsep.join([str(ROOT), str(ROOT / "integrations")])
SHOWN = {
    "first_steps.py": [
        "likes/pref001: green tea, said 2 times, contexts ['morning', 'office']",
        "recalled allergies/pref001: I'm allergic to walnuts. (because of allergic)",
        "- likes: green tea [morning office] (2×)",
        "[preferences.allergies.pref001]",
    ],
    "booking_agent.py": [
        "  tool: ✅ Created diet/pref001: 'I eat vegan'.",
        "  tool: ✅ Boosted seating/pref001 (count: 2).",
        "Noor books again: the terrace table, because of 'A quiet corner with no music, please'.",
    ],
    "custom_schema.py": [
        "├── dishes: dict[str, Dish]",
        "dishes/pref001: green curry, heat 4 (Dish)",
        "{'accepted': ['laksa']}",
        """{'error': ['phaal.heat: Input should be less than or equal to 5', 'water.text: Field required']}""",
        """{'error': ["unknown category 'drinks'. Use one of: dishes, tools."]}""",
    ],
    "writer_health.py": [
        "healthy: queue 0% full, errors 0%, 0 turns pending",
        "submit_nowait: the queue is full: 8 turns waiting. Try again later, or use submit, which waits.",
        "degraded: queue 100% full, errors 0%, 10 turns pending",
        "submit is waiting: True",
        "11 of 11 accepted turns are stored",
        "degraded: queue 0% full, errors 8%, 0 turns pending",
        "closed: 11 completed, 1 failed",
    ],
    "langchain_agent.py": [
        "ana, friday: Which cake is good?",
        "  Try the cheesecake.",
        "  Try the walnut cake.",
        """text = "I'm allergic to walnuts.\"""",
    ],
    "langchain_rag.py": [
        "  You told me in tuesday#1: I hate loud restaurants.",
        "  You told me in monday#1: I like window seats.",
        "  You never told me.",
    ],
    "langchain_extractor.py": [
        "  offered 6 tools",
        "likes/pref001: rye bread",
        "dislikes/pref001: cold soup",
        "biography/pref001: I live in Porto.",
    ],
    "langchain_and_pydantic_ai.py": [
        "LangChain: I know: nothing yet",
        "pydantic-ai: ✅ Noted as likes/pref001. - allergies/pref001: I'm allergic to walnuts.",
        "LangChain: I know: likes: night trains; allergies: I'm allergic to walnuts.",
    ],
    "health_endpoint.py": [
        "GET /health/memory: 200 healthy",
        "tomldiary_writer_completed_total 3",
        "GET /health/memory: 503 ['the writer is closed']",
    ],
    "pydantic_ai_support.py": [
        "  Noted. Have you tried turning it off and on?",
        "  Let us look at your R200 by mail.",
        "  Let us look at your device on the phone.",
        """text = "And I hate phone calls.\"""",
    ],
    "pydantic_ai_two_agents.py": [
        "planner is shown: - likes: short flights / - likes: a window seat",
        "planner is shown: - likes: an aisle seat / - likes: short flights",
        "planner is shown: nothing new",
    ],
    "pydantic_ai_stream.py": [
        "the reader has seen 'And 0, ' and leaves",
        "the run was cancelled: True",
        "remembered, likes: I like short answers.",
        "remembered, dislikes: I hate waiting.",
        "turns: 2",
    ],
    "pydantic_ai_spec.py": [
        "ida: I know of crime novels, and my tools are: recall.",
        "ole: I know of nothing, and my tools are: recall.",
    ],
    "pydantic_ai_and_langgraph.py": [
        "waiter: With pleasure.",
        "kitchen: A risotto without mushrooms.",
        "kitchen, after an edit: A risotto without leeks.",
    ],
    "edit_while_running.py": [
        "the agent reads: eats at seven sharp",
        "and remembers: plans a surprise party",
        "# Robin is my favourite guest.",
        "# Told me on the phone. Do not mention it to anyone!",
        'text    = """plans a surprise party"""   # in June',
    ],
}

TELLS = {"writer_health.py": "tomldiary: "}  # its stderr: a turn fails there


# Run an example twice in a folder.
RUNS = """
import runpy, sys
example = sys.argv[1]
for _ in range(2):
    sys.argv = sys.argv[-2:]
    runpy.run_path(example, run_name="__main__")
    print("\\0", flush=True)
"""


def run(name, folder):
    """Run an example twice in a folder; return what each run printed."""
    line = (*STRICT, "-c", RUNS, EXAMPLES / name, folder)
    done = programs.run(*line, imported=programs.FRAMEWORKS, timeout=120)
    assert done.returncode == 0, done.stderr
    expected = TELLS.get(name)
    assert [
        line for line in done.stderr.splitlines() if not expected or not line.startswith(expected)
    ] == []
    return done.stdout.split("\0\n")[:-1]


def test_every_example_is_listed_here():
    assert {path.name for path in EXAMPLES.glob("*.py")} == set(SHOWN)


def test_no_example_can_ask_a_model_of_a_provider():
    texts = [path.read_text("utf-8") for path in EXAMPLES.rglob("*.py")]
    asking = [text for text in texts if "from pydantic_ai" in text]
    assert len(asking) >= 6
    assert all("\nmodels.ALLOW_MODEL_REQUESTS = False" in text for text in asking)


@pytest.mark.parametrize("name", SHOWN)
def test_it_runs_offline_and_again_in_a_folder_it_is_given(name, tmp_path):
    outputs = run(name, tmp_path)
    assert len(outputs) == 2
    lines = outputs[0].splitlines()
    # A line may end with the day of the run.
    assert [
        line for line in SHOWN[name] if line not in {each.partition(" (20")[0] for each in lines}
    ] == []
    files = list(tmp_path.glob("*/preferences.toml"))
    assert files
    for file in files:
        assert tomllib.loads(file.read_text("utf-8"))["preferences"]


@pytest.mark.parametrize("name", SHOWN)
def test_it_is_short_and_says_how_to_run_it(name):
    text = (EXAMPLES / name).read_text("utf-8")
    assert len(text.splitlines()) < 80
    assert f"Run: python examples/{name} [FOLDER]" in text.split('"""')[1]
    assert re.search(r"^(async )?def main\(", text, re.MULTILINE)
    folder = "Path(sys.argv[1] if len(sys.argv) > 1 else temporary)"
    assert f"    with TemporaryDirectory() as temporary:\n        main({folder})\n" in text.replace(
        f"asyncio.run(main({folder}))", f"main({folder})"
    )


def test_no_example_parses_the_answers_that_tools_give_a_model():
    for path in EXAMPLES.rglob("*.py"):
        assert not re.search(r"answer\.(startswith|split)|❌", path.read_text("utf-8")), path.name
