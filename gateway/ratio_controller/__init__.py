"""Ratio controller: a separate process that scales the drafters' Deployment to the verifiers' demand.

Input is the metrics of drafters and verifiers, from Prometheus or from the replicas; output is the number of drafter
replicas, written to the Deployment's scale. `policy` computes it as a pure function, `controller` runs the loop and
writes the scale, `lease` elects one of several replicas as leader, and `app` assembles them.
"""
