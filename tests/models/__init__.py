"""modeling/: each model, what they share, and their folders on the Hub."""
