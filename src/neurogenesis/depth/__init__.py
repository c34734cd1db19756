"""Depth: stacks of interchangeable blocks, found in a trace, and surgery that adds and removes blocks."""
