"""What is read from outside, and held against its form before anything uses it.

Here: the forms (`schema.py`), PyTorch's files (`pickles.py`), folders of global tensors
(`shards.py`). `flow.save` and `flow.load` are `flowvm/serialization.py`, saved graphs
`graph/logical/saving.py`. Not here: anything that runs what a file says.
"""
