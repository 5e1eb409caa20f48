"""Importers: what other programs remember, carried over into the memory of a user.

May import every layer below; reads files as plain data and imports none of these programs.
One module a source turns its file into `records`; `importer` compares them with the memory and adds what is missing.
Begin reading in `importer.carry_over`.
"""

from tomldiary.importers.importer import SOURCES, Import, carry_over

__all__ = ["SOURCES", "Import", "carry_over"]
