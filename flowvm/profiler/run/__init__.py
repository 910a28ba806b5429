"""A recorded run as columns: collected, measured, named, saved.

Not here: what follows from the columns (`analysis`), and how that is shown (`views`).
"""
