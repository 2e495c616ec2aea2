"""What every service needs to run: settings, logs, gRPC servers and channels, access, metrics, discovery and checks.

Settings files and environment variables enter through `settings`; a running server with health, reflection and error
statuses leaves through `server`, and the command line of a service through `command`. `scrapes`, `metrics_readers` and
`metrics_snapshot` read the metrics of running services back. Nothing here knows tokens or models.
"""
