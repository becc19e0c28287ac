"""The tokenizer: vocabularies of both checkpoint formats, detokenisation, chat templates."""
