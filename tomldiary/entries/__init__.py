"""What is stored and under which rule: preferences, conversations, facts, blocks, episodes.

Imports `toml` only. Begin with `models` and `schema`.
"""
