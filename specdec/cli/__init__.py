"""The `specdec` command line.

`app` defines the commands and `options` their options. `commands` has a module for each: `run` and `compare` talk to a
gateway, `prove` tests exactness over HTTP, `advise` sizes a deployment, `doctor` checks configurations. `local` plans,
starts and watches a whole system on this machine for `up`, and runs one service for `serve`. No service is imported
here: each runs in its own process.
"""
