"""Chat logs of OpenAI, LangChain, pydantic-ai, ChatGPT, Claude and LoCoMo, read as plain data and applied turn by turn.

May import every layer below. It imports no framework and creates no framework object from a dump.
`source` parses the file, `messages` and `locomo` turn messages into utterances, `turns` pairs them with their replies.
Begin reading in `formats.read_turns`, then `runner.ingest`.
"""

from tomldiary.ingest.formats import KNOWN_FORMATS, read_turns
from tomldiary.ingest.runner import IngestReport, ingest
from tomldiary.ingest.turns import ChatLog, ChatTurn

__all__ = ["KNOWN_FORMATS", "ChatLog", "ChatTurn", "IngestReport", "ingest", "read_turns"]
