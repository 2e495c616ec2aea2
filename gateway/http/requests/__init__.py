"""HTTP request bodies, their fields, and their conversion to requests."""
