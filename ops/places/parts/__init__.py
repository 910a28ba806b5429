"""What the public ops of `flowvm.ops.places` are made of."""
