"""What the Triton forms of the operators share: configuration, launching, number formats, and the table that a platform binds.

One source serves every chip that Triton compiles for. What differs between chips comes in as capability data (`config.Config`),
never as a vendor's name. Importing this package loads no triton.
"""
