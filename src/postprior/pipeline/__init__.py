"""The update pipeline: a store, its verbs, and what they decide."""
