"""The transaction log and what can be asked of it: changes, origins, earlier states, rollback.

Begin with `record`, then `timeline`.
"""
