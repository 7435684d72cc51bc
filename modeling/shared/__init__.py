"""Code that the model families share: packed rows, losses, and faster matrix products on the CPU."""
