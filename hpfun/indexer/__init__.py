"""Balancing the Lightning Indexer: work, modes, plans, routes, bounds. Public names are in ``hpfun``."""
