"""Where people save and train: checkpoints, and one file for each framework."""
