"""Job that creates the certificates of an installation without cert-manager, before each install and upgrade.

`authority` creates and validates certificates as pure functions, and `secrets` stores them in Kubernetes Secrets.
"""
