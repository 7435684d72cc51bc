"""What models have learned, measured without fine-tuning them.

Each command is a module: `python -m elmo_gpt_bert.analysis.NAME`.
"""
