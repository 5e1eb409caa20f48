"""The command line.

```
app      the program, and how its errors look
demo     one scripted chat, from the queue to the file and back     doors: through each framework
ingest   a chat log into memory
show     users, preferences, conversations        search: the entries that answer a question
history  what happened        why: where an entry comes from        diff: between two points
rollback undoing              changes: one change in one line       points: numbers, times, keys
doctor   the health of a folder
schema   preference tables and conversation entries as text
memory   opening a folder     tables: a preference table from a Python file
output   text, TOML and JSON on the screen
```

It needs the extra `cli`; nothing outside this package imports it but `__main__`.
"""
