"""Multiple choice, as in SWAG, RACE and Story Cloze: a context and several choices, of which one is right."""
