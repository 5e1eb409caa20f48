"""Items of any JSON value under a namespace and a key, kept in a user's `items/…` documents.

Behind the LangGraph store. Begin with `store`, then `operations`.
"""
