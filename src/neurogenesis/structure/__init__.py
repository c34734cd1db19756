"""Widths of a model: what can grow, together with what, and why not."""
