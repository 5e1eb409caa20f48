"""Hand edits: detecting what another program saved, its base version, and the three-way merge.

It may import history, storage (the protocol), entries and what is below them; never the engine.
Begin with `detect.look`.
"""
