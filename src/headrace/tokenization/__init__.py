"""Parts of the tokenizer: vocabularies of both checkpoint kinds, detokenisation, chat templates."""
