"""Beliefs on disk."""
