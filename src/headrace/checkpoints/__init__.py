"""Checkpoints: a Hugging Face directory or a GGUF file, read by memory map. `checkpoint.open_checkpoint` is the entry.

Nothing is imported here: the server reads a GGUF's header for its tokenizer, and has no use for torch.
"""
