"""Chat logs as turns: OpenAI, LangChain, pydantic-ai and LoCoMo files, read as plain data.

```
read_turns(path) ─ source         bytes → JSON or JSON Lines records
                 ├ detect         which format the records are in
                 ├ openai, langchain, pydantic_ai    one message → one utterance
                 ├ conversations  records → named conversations → turns
                 └ locomo         two people talking → turns of one of them
ingest(diary, …) ─ runner         turns → memory, each exactly once
                 └ ledger         which turns were applied already
```

No framework is imported and no object is revived from a dump.
"""

from tomldiary.ingest.detect import KNOWN_FORMATS
from tomldiary.ingest.reading import read_turns
from tomldiary.ingest.runner import IngestReport, ingest
from tomldiary.ingest.turns import ChatLog, ChatTurn

__all__ = ["KNOWN_FORMATS", "ChatLog", "ChatTurn", "IngestReport", "ingest", "read_turns"]
