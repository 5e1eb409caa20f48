"""Natural-language text: words of every script, similarity, and what a reader can see of a text.

Knows no entry. Begin with `words` and `similarity`.
"""
