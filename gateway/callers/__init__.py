"""Callers: authentication by API key, the tenant of each call, and its priority.

Input is the `authorization` of a call, checked against the key file. Output is a frozen `ApiKey` with the tenant, the
limits and the best priority class of the key.
"""
