"""Room of who calls: the API key that a call carries, whose sessions it may touch, and before whom it may go.

The `authorization` of a call enters, checked against the file of keys; a frozen `ApiKey` leaves, with the tenant, the
limits and the best priority class of the key.
"""
