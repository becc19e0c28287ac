"""Grammars that constrain output: checked, compiled off the loop, and handed to the scheduler as matchers."""
