"""gRPC channels from one service to another."""

from typing import cast

import grpc.aio

from specdec.serving.rpc.access import UNGUARDED, Access
from specdec.serving.rpc.checksum import CheckedChannel
from specdec.serving.rpc.tls import Certificates

MAX_MESSAGE_BYTES = 16 * 2**20

_OPTIONS = (
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
    # A hung peer or lost machine is detected within 8 seconds, less than a default lease.
    ("grpc.keepalive_time_ms", 5_000),
    ("grpc.keepalive_timeout_ms", 3_000),
    # The C core waits this long for the reply to any ping, even if the keepalive timeout is shorter.
    ("grpc.http2.ping_timeout_ms", 3_000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
    # A channel that replaces another one opens its own connection.
    ("grpc.use_local_subchannel_pool", 1),
    # A channel reconnects to a restarted peer within a second. The minimum back-off also bounds one handshake.
    ("grpc.min_reconnect_backoff_ms", 1_000),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1_000),
)


def open_channel(address: str, access: Access = UNGUARDED) -> grpc.aio.Channel:
    """Open a channel to `host:port`, in plaintext without certificates. It connects on first use.

    Calls to specdec services carry the token, and their messages have checksums. A corrupted response, or one without a
    checksum, becomes a MessageCorrupted in place of the message. `specdec.serving.rpc.checksum.received` raises it.
    """
    return cast("grpc.aio.Channel", CheckedChannel(_open(address, access.certificates), access.metadata))


def _open(address: str, certificates: Certificates | None) -> grpc.aio.Channel:
    if certificates is None:
        return grpc.aio.insecure_channel(address, options=_OPTIONS)
    # The address of a peer is its pod's, which no certificate contains.
    name = (("grpc.ssl_target_name_override", certificates.peer),) if certificates.peer else ()
    return grpc.aio.secure_channel(address, certificates.for_channel(), options=(*_OPTIONS, *name))
