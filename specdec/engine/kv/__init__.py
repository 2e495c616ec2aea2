"""Keys and values: storage, prefix sharing and transfer."""
