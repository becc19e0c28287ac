"""What devices with streams, events and captured steps share, whoever makes them: `platform` finds and opens them, `device` is
the base of one that is open, the rest are its parts. Importing `platform` loads neither torch nor a driver."""
