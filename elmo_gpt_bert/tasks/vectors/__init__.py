"""Static word vectors: word2vec, fastText and GloVe, trained on raw text and scored on word similarity."""
