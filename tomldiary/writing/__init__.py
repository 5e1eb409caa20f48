"""What `MemoryWriter` is made of: the journal, the queue, what happens when a turn fails, and the figures."""
