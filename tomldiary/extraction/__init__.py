"""Turning a conversation turn into operations."""
