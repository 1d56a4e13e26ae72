"""From processes to a group of ranks, and back: how they meet, on which machine they are, how they end."""
