"""What the public ops of `flowvm.ops.pointwise` are made of."""
