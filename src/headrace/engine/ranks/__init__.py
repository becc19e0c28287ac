"""One engine over several ranks: rank 0 schedules and sends every plan, each rank runs its part of the model on a device of its own."""
