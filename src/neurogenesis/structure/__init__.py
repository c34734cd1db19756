"""Find the widths of a model: which sizes can grow, what grows with them, and what prevents growth."""
