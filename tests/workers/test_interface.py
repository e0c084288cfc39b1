from __future__ import annotations

import socket
from types import SimpleNamespace

import psutil  # type: ignore[import-untyped]
import pytest

from octavo.workers.interface import interface_of


def address(family, address, netmask=None):
    return SimpleNamespace(family=family, address=address, netmask=netmask)


@pytest.fixture
def machine(monkeypatch):
    """One with a loopback, two networks and a bridge."""
    four, six = socket.AF_INET, socket.AF_INET6
    interfaces = {
        "lo": [address(four, "127.0.0.1", "255.0.0.0"), address(six, "::1")],
        "docker0": [address(four, "172.17.0.1", "255.255.0.0")],
        "eth0": [
            address(psutil.AF_LINK, "02:00:00:00:00:01"),
            address(four, "10.0.0.5", "255.255.255.0"),
            address(six, "fe80::1%eth0"),
        ],
        "eth1": [address(four, "10.0.1.5", "255.255.255.0"), address(six, "2001:db8::5")],
    }
    monkeypatch.setattr(psutil, "net_if_addrs", lambda: interfaces)


@pytest.mark.parametrize(
    "own, expected",
    [
        ("10.0.0.5", "eth0"),
        ("10.0.1.5", "eth1"),
        ("2001:db8::5", "eth1"),
        ("fe80::1", "eth0"),
        ("127.0.0.1", "lo"),
        ("127.0.0.12", "lo"),
        ("203.0.113.9", None),
    ],
)
def test_the_interface_that_has_the_address(machine, own, expected):
    assert interface_of(own) == expected


def test_this_machines_loopback():
    name = interface_of("127.0.0.1")
    assert name is not None and name in psutil.net_if_addrs()
