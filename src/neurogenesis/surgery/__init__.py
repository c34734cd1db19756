"""Apply plans to models and optimizers, atomically."""
