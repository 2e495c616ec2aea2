"""Keys and values: where they are stored, for which prefixes, and how they are moved."""
