"""Importers of the memories of other programs into the memory of a user.

May import every layer below. Reads files as plain data, and imports none of these programs.
One module per source converts its file into `records`. `importer` adds the records that are missing in the memory.
Begin reading in `importer.carry_over`.
"""

from tomldiary.importers.importer import SOURCES, Import, carry_over

__all__ = ["SOURCES", "Import", "carry_over"]
