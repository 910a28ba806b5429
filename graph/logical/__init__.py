"""LogicalGraph: what a capture yields; its printer, interpreter and plain form."""
