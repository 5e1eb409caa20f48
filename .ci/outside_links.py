"""A hook of mkdocs: links to files outside docs/ become plain text, because the site does not hold them."""

from __future__ import annotations

import posixpath
import re
from typing import Any

_LINK = re.compile(r"\[([^\]]*)\]\(([^)\s]+)\)")


def on_page_markdown(markdown: str, *, page: Any, **_context: object) -> str:
    """Return the page without links that leave the folder."""
    folder = posixpath.dirname(page.file.src_uri)

    def inside(link: re.Match[str]) -> str:
        target = posixpath.normpath(posixpath.join(folder, link[2]))
        return link[1] if target.startswith("../") else link[0]

    return _LINK.sub(inside, markdown)
