"""Importers of the memories of other programs into the memory of a user.

May import every layer below. Reads files as plain data, and imports none of these programs.
`sources` has one function per program, which reads its files as records. `importer` adds those that are missing in
the memory. Begin reading in `importer.carry_over`.
"""

from tomldiary.importers.importer import Import, carry_over
from tomldiary.importers.sources import SOURCES

__all__ = ["SOURCES", "Import", "carry_over"]
