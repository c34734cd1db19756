"""Would-be neurons, run through the model as it is."""
