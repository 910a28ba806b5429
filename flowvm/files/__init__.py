"""Data from outside, checked against its form before anything uses it.

Here: the forms (`schema.py`), bounds on depth, keys, sharing and time (`bounds.py`), PyTorch's
files (`pickles.py`), folders of global tensors (`shards.py`); texts of files and programs made safe
to print (`printable.py`); where files are written (`writer.py`). `flow.save` and `flow.load` are
`flowvm/serialization.py`, saved graphs `graph/logical/saving.py`. Not here: anything that runs what
a file says.
"""
