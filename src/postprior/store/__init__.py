"""Beliefs on disk."""

from postprior.store.archive import Archive, State
from postprior.store.audit import Problem
from postprior.store.journal import Entry

__all__ = ["Archive", "Entry", "Problem", "State"]
