"""Out of the store and into the world: files that others can run, a report, a model card, trackers."""
