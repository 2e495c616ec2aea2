"""The drafter: a service that drafts tokens for the sessions of many verifiers.

`service` implements the RPC, `app` wires the parts together, `config` defines the settings, `metrics` the metrics and
`check` the drafter's checks in `specdec doctor`. `sessions` holds the sessions, `drafters` the sources of drafts.
Verifiers open, commit to and close sessions. The drafter replies with draft tokens and their distributions, or refuses.
"""
