"""Discovery of verifiers: which addresses there are, and which of them are draining.

Settings enter; a source of snapshots leaves, which yields all endpoints again after every change. Static lists and DNS
names are sources of `specdec.serving.discovery`; `sources` adds the Kubernetes API: `cluster` connects to it,
`reflector` keeps EndpointSlices up to date, and `slices` turns them into endpoints.
"""
