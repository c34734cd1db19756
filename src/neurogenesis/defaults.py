"""Defaults that are also needed where torch is not imported: in the help of the command and in reports."""

from __future__ import annotations

STRATEGY = "need"
"""The strategy where none is named: it asks the loss, and stops by itself."""
FACTOR = 16
"""Maximum size of each width, as a multiple of its initial size, where neither the trigger nor the user sets one.

So that a model that `neurogenesis.narrow` has made small regains its original widths, and no more.
"""
GAMMA = 0.97
"""Factor of the baseline of activation triggers."""
GAMMA_CONVOLUTIONAL = 0.9
"""The same in networks with convolutions."""
GAMMA_WEIGHT = 0.99
"""Factor of the baseline of the weight trigger."""
MAX_INTERVAL = 12
"""Maximum number of gradient steps between two looks.

A look costs about three training steps of a dense network, so at this interval looks add about 25 % to the training
time. A decision comes at most eleven steps late, less than a tenth of an epoch on MNIST.
"""
