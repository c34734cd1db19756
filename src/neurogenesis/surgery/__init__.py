"""Cut and sew: plans applied to models and optimizers, all or nothing."""
