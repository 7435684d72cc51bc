"""Named-entity recognition: sentences whose words have tags."""
