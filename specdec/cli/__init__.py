"""The `specdec` command: a command line comes in, text and an exit status go out.

`app` has the commands and `options` their options. `commands` has a module for each: `run` and `compare` talk to a
gateway, `prove` tests exactness over HTTP, `advise` sizes a deployment, `doctor` checks configurations. `local` plans,
starts and watches a whole system on this machine for `up`, and becomes one service for `serve`. No service is imported
here: each runs in a process of its own.
"""
