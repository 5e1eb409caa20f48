"""The commands, those of one kind in a module.

Each registers itself with `app` and prints through `output`.
"""
