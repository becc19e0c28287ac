"""What the Pallas operators share: how a kernel is called, the work lists of ragged batches, the report of a compiler run."""
