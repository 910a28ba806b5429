"""What the public ops of `flowvm.ops.rows` are made of."""
