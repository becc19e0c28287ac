"""One engine over several ranks: rank 0 sends every plan to the others, and each rank runs its part on its own
device."""
