"""Number formats and checkpoint schemes: the packed layout of each and the exact values it stands for."""
