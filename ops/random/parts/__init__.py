"""What the public ops of `flowvm.ops.random` are made of."""
