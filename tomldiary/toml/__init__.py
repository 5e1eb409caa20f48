"""TOML text: guarded reading, exact writing, and edits that touch nothing else."""
