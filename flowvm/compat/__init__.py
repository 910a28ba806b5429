"""Other frameworks' names for flowvm, in processes that ask for them.

Not here: flowvm's own names.
"""
