"""The common part of all devices with streams, events and captured steps, for every vendor.

`platform` finds and opens them, `device` is the base class of an opened device, the other modules are its parts.
Importing `platform` loads neither torch nor a driver.
"""
