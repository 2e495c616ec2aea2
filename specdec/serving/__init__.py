"""Common parts of all services: settings, logs, gRPC servers and channels, access, metrics, discovery and checks.

`settings` reads settings files and environment variables. `rpc.server` runs a server with health, reflection and error
statuses, and `command` is the command line of a service. `rpc` holds the gRPC parts, `telemetry` the logs, metrics and
traces. Nothing here depends on tokens or models.
"""
