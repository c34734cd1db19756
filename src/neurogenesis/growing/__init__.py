"""The Grower, and growth by hand."""
