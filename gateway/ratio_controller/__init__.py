"""The ratio controller: a process of its own that scales the drafters' Deployment to the verifiers' demand.

Live metrics of drafters and verifiers enter, from a Prometheus or from the replicas; the number of drafter replicas
leaves, written to the Deployment's scale. `policy` computes it without any input or output, `controller` is the loop
and writes the scale, `lease` makes one of several replicas the leader, and `app` joins them.
"""
