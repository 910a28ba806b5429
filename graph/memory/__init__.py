"""Where values lie: what may be written in place, and offsets in one chunk."""
