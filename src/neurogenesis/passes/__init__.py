"""What the user's own passes show of each width."""
