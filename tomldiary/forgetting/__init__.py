"""Erasing for good: what a selector means, and history without it.

Begin with `selection`, then `redact`.
"""
