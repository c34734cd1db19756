"""Candidate neurons: trial runs of the current model with neurons that it does not have yet."""
