"""Tuning tables: their schema and files, which one serves a topology, and why a choice is what it is."""
