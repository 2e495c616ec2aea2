"""Keys and values on an accelerator: pages that sessions share, and passes that are captured once and replayed."""
