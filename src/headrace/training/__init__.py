"""Training of heads that draft: a model's own answers, its hidden states, and the heads' definitions in plain torch."""
