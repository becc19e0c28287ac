"""Number formats and checkpoint schemes: how each is packed, and exactly what it stands for."""
