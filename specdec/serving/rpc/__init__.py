"""gRPC parts of all services: servers, channels, certificates, checksums and status codes."""
