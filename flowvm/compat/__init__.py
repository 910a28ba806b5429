"""Other frameworks' names for flowvm, for a process that asks for them.

Not here: flowvm's own names.
"""
