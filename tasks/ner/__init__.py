"""Named entities: sentences whose words have tags."""
