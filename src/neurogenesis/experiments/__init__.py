"""The experiments of the paper: data, models, presets, training."""
