"""Items: any JSON value under a namespace and a key, in a user's `items/…` documents.

The core behind the LangGraph store. May import every layer below the interfaces; adapters use it.
Begin with `store` and `operations`; `catalog` reads namespaces, `writes` changes them, `batch` joins async puts.
"""
