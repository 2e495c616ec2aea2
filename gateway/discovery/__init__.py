"""Discovery of verifiers: their addresses, and whether they are draining.

The settings select a source of snapshots, which yields all endpoints after every change. `specdec.serving.discovery`
provides static lists and DNS names. `sources` adds the EndpointSlices of the Kubernetes API: `cluster` connects to it,
and `reflector` keeps them up to date.
"""
