"""SWAG, RACE, Story Cloze and their like: a context and choices, one of which is right."""
