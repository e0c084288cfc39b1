"""Sockets that only processes of one deployment can use: CURVE, ZeroMQ's encryption.

The listener's public key is what it keeps secret: it is handed on through Ray alone and never sent
in the clear, and without it no handshake succeeds. So prompts and tokens cannot be read on the
network, and a worker of an earlier group on a port used again is not heard.
"""

from __future__ import annotations

from typing import Any

import zmq

Socket = zmq.Socket[Any]


def listen(*sockets: Socket) -> str:
    """Makes the sockets listeners, before they bind. Returns the key that dialling takes."""
    public, secret = zmq.curve_keypair()
    for socket in sockets:
        socket.curve_secretkey = secret
        socket.curve_publickey = public
        socket.curve_server = True
    return public.decode()


def dial(socket: Socket, key: str) -> None:
    """Makes the socket a caller of who listens under `key`, before it connects."""
    public, secret = zmq.curve_keypair()
    socket.curve_secretkey = secret
    socket.curve_publickey = public
    socket.curve_serverkey = key.encode()
