"""Released files -> what this project reads: a command for each release, `zoo-convert-elmo` and so on.

    elmo       ELMo, of bilm-tf, AllenNLP and ELMoForManyLangs (manylangs)
    gpt        OpenAI's GPT
    bert       Google's BERT
    vectors    word vectors of GloVe, word2vec and fastText, for ELMo's task networks

Each writes a folder for `from_pretrained`. A table of names says which tensor of a release becomes which
parameter. Every tensor is used and every parameter filled, or it is an error, and then no folder is written.
"""
