"""gRPC as every service speaks it: servers, channels, certificates, checksums and status codes."""
