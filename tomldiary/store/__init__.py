"""Items: JSON values under a namespace and a key, stored in a user's `items/…` documents.

The core of the LangGraph store. May import every layer below the interfaces; adapters use it.
Begin with `store` and `operations`. `catalog` reads namespaces, `writes` changes them, `batch` joins async puts.
"""
