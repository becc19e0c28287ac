"""Code that the Triton forms share: launch configuration, number formats, and the operator set that a platform binds.

One source is compiled for every chip that Triton supports. Differences between chips are capability data
(`launch_config.LaunchConfig`), never a vendor's name. Importing this package loads no triton.
"""
