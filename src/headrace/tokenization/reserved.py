"""Reserved names of template variables. Nothing is imported here: the server uses them before it loads a template."""

from __future__ import annotations

__all__ = ["RESERVED_TEMPLATE_ARGUMENTS"]

RESERVED_TEMPLATE_ARGUMENTS = frozenset(
    "messages conversation tools documents tokenize tokenizer return_tensors return_dict padding truncation max_length "
    "add_generation_prompt continue_final_message chat_template add_special_tokens bos_token eos_token raise_exception "
    "strftime_now".split()
)
"""Names that a request may not set in a chat template: the engine sets them, or template functions have them."""
