"""elmo_gpt_bert/training: what all runs share."""
