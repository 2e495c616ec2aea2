"""What goes out over HTTP: objects, chunks, events and errors."""
