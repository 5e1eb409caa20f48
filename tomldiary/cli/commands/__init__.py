"""The commands, those of one kind in a module.

`app` names them and imports a module when one of its commands is called.
"""
