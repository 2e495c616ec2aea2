"""Makes the certificates of an installation that has no cert-manager: a Job that ends, before each install and upgrade.

`authority` makes and judges certificates without any input or output, `secrets` keeps them in Secrets of Kubernetes.
"""
