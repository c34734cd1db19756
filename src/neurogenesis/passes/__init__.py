"""Training passes of the user, and replays of them, as seen by each width."""
