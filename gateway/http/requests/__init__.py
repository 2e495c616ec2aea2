"""What comes in over HTTP: bodies, their fields, and the requests that they make."""
