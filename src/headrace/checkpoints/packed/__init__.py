"""Weights as a platform has laid them out, kept on disk from one start to the next.

`cache.py` finds, loads, keeps and evicts; `content.py` says which checkpoint it was; `tree.py` turns a model's weights into a
header and buffers, and back; `file.py` is the file's form; `forms.py` is what a platform brings.
"""
