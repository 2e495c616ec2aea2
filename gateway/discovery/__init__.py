"""Discovery of verifiers: which addresses there are, and which of them are draining.

Settings enter; a source of snapshots leaves, which yields all endpoints again after every change. Static lists and DNS
names are sources of `specdec.serving.discovery`; `sources` adds the EndpointSlices of the Kubernetes API: `cluster`
connects to it, and `reflector` keeps them up to date.
"""
