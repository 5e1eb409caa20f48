"""The import path of TOMLDiary 0.9. New code uses `extractor` and `prompt` of `tomldiary.extraction`."""

from tomldiary.extraction.extractor import build_extractor, compactor_agent, extractor_agent
from tomldiary.extraction.prompt import extractor_prompt_check

__all__ = ["build_extractor", "compactor_agent", "extractor_agent", "extractor_prompt_check"]
