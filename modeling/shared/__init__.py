"""What families share: packed rows, losses and the fast products of a processor."""
