"""The tests of `BackendSuite`, a module for each subject.

May import every package but the command line and the adapters. `fixtures` is what a subclass says.
"""
