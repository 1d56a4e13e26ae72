"""Collectives on networks that are not there: what they cost, what would be best; `simulate.py` runs them."""
