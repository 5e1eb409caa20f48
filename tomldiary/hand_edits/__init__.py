"""Hand edits: detection, base version and three-way merge.

It may import history, storage (the protocol), entries and the packages below them; never the engine.
Begin with `detect.look`.
"""
