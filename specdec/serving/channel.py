"""How one service dials another."""

import grpc.aio

MAX_MESSAGE_BYTES = 16 * 2**20

_OPTIONS = (
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
    ("grpc.keepalive_time_ms", 20_000),
    ("grpc.keepalive_timeout_ms", 5_000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
    # A peer that restarts is found again within a second.
    ("grpc.min_reconnect_backoff_ms", 100),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1_000),
)


def open_channel(address: str) -> grpc.aio.Channel:
    """A plaintext channel to `host:port`; it connects on first use and closes with `close()`."""
    return grpc.aio.insecure_channel(address, options=_OPTIONS)
