"""What the public ops of `flowvm.ops.planes` are made of."""
