"""Items: any JSON value under a namespace and a key, kept in a user's `items/…` documents."""
