"""Guesses of the next tokens, for speculative decoding, and the choice of how many of them to verify; no torch.

A guess never changes an output: the target model samples at every position, and a guessed token counts only if it is
what was sampled. So everything here may be wrong; it decides only about speed.
"""
