"""Searches for settings, which growing is compared with.

==================  ==========================================================================
`space`             the space of a search, and the settings of its points
`choice`            the goal of a search, and the best result or the Pareto front
`trials`            trials and their directories
`directory`         the directory of a search
`search`            trials that Optuna proposes and an engine does
`tune`              a search, and the final training of the chosen trials
`against_growing`   searches with several budgets next to grown networks
==================  ==========================================================================
"""
