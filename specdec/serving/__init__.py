"""What every service needs to run: settings, logs, gRPC servers and channels, access, metrics, discovery and checks.

Settings files and environment variables enter through `settings`; a running server with health, reflection and error
statuses leaves through `rpc.server`, and the command line of a service through `command`. `rpc` has what gRPC needs,
`telemetry` logs, metrics and traces. Nothing here knows tokens or models.
"""
