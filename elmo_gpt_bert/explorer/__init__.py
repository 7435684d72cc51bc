"""What app.py shows of a sentence, as functions without a page: neighbours, probabilities, entities, attention."""
