"""The network interface that a node's address belongs to.

Gloo would listen where the machine's own name leads, which on many systems is the loopback.
"""

from __future__ import annotations

import ipaddress
import socket

import psutil  # type: ignore[import-untyped]


def interface_of(address: str) -> str | None:
    """The one that has this IP address, else the one whose network it is in (all of 127.0.0.0/8
    is the loopback's); None for an address that this machine is only known by elsewhere."""
    wanted = ipaddress.ip_address(address)
    near = None
    for name, addresses in psutil.net_if_addrs().items():
        for each in addresses:
            if each.family not in (socket.AF_INET, socket.AF_INET6):
                continue
            own = each.address.partition("%")[0]  # the rest is an IPv6 scope
            if ipaddress.ip_address(own) == wanted:
                return str(name)
            if each.family == socket.AF_INET and each.netmask:
                network = ipaddress.ip_network(f"{own}/{each.netmask}", strict=False)
                near = name if near is None and wanted in network else near
    return near
