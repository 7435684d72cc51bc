"""elmo_gpt_bert/tasks, the scripts and their recipes: what is read, decoded and scored, and whole runs."""
