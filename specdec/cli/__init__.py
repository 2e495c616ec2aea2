"""Room of the `specdec` command: a command line comes in, text and an exit status go out.

`app` holds the commands and `options` their options. `up` plans (`plan`), starts (`launch`, `processes`) and watches a
whole system on this machine; `serve` becomes one service; `doctor` checks configurations; `run` and `compare` talk to a
gateway through `client`; `prove` tests exactness over HTTP; `advise` sizes a deployment; `models` fetches models. No
service is imported here: each runs in a process of its own.
"""
