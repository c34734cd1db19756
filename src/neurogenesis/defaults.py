"""Defaults that are needed where torch is not imported: the help of the command."""

from __future__ import annotations

GAMMA = 0.97
"""Factor of the baseline of activation triggers."""
GAMMA_CONVOLUTIONAL = 0.9
"""The same in networks with convolutions."""
GAMMA_WEIGHT = 0.99
"""Factor of the baseline of the weight trigger."""
