"""A plain network made Bayesian, and the belief about all its weights together."""
