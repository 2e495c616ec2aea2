"""HTTP replies: objects, chunks, events and errors."""
