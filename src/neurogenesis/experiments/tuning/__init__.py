"""Searches for settings: what growing must beat.

==================  ==========================================================================
`space`             what is searched, and how a point of it becomes settings
`choice`            the best result, or the Pareto front
`trials`            trials and their directories
`directory`         the directory of a search
`search`            trials that Optuna proposes and an engine does
`tune`              a search, and the final training of what it chose
`against_growing`   searches with several budgets next to grown networks
==================  ==========================================================================
"""
