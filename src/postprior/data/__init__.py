"""Parts of data, and where they come from."""
