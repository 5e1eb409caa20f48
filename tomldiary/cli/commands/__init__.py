"""The commands, one module each.

Each registers itself with `app` and prints through `output`.
"""
