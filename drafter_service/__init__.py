"""The drafter: a service that drafts tokens for the sessions of many verifiers, which check them.

`service` answers the one RPC, `app` puts the parts together, `config` holds the settings, `metrics` the metrics and
`check` the drafter's part of `specdec doctor`. The sessions are in `sessions`, the sources of drafts in `drafters`.
Verifiers send opens, commits and closes of sessions; draft tokens with their distributions leave, and refusals.
"""
