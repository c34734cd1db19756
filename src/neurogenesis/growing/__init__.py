"""The `Grower`, and growing by hand."""
