"""How names are found: late, elsewhere, or not at all.

Here: modules that are imported when something of theirs is first wanted (`lazy.py`), who answers
what lower layers ask for (`providers.py`, on top of all), names of PyTorch's that flowvm has not
(`absent.py`). Not here: files of tensors (`flowvm/files`).
"""
