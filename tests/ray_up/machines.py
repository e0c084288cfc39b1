"""Machines to log in to, made of namespaces: each has a network interface, processes, a home and a
/tmp of its own, and an ssh server. Needs root, `ip`, `unshare`, `nsenter`, and sshd.

What is stopped on one by name, as `ray stop` does, is stopped there alone.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from tests.e2e.server import wait_for

NETWORK = "10.79.0"
SWITCH = f"{NETWORK}.254"
HOME = "/var/tmp/octavo-home"  # of root on every machine: no folder that others may see
TOOLS = ("ip", "unshare", "nsenter", "rsync", "ssh", "ssh-keygen")
SSHD = "/usr/sbin/sshd"
START_SECONDS = 30


def missing() -> str | None:
    """Why there can be no machines here, or None."""
    for tool in (*TOOLS, SSHD):
        if shutil.which(tool) is None:
            return f"there is no {tool}"
    made = subprocess.run(
        ["unshare", "--net", "--mount", "--pid", "--fork", "true"], capture_output=True, check=False
    )
    return None if made.returncode == 0 else "namespaces cannot be made here"


class Machine:
    """`inside` is the process id that all of its namespaces are reached by."""

    def __init__(self, name: str, address: str, folder: Path) -> None:
        self.name, self.address = name, address
        self.home = folder / "home"
        for each in (self.home / ".ssh", folder / "tmp"):
            each.mkdir(parents=True)
        self.home.chmod(0o700)
        (self.home / ".bashrc").touch()
        base = Path(sys.base_prefix) / "bin"
        (self.home / ".profile").write_text(f"export PATH={base}:$PATH\n")
        passwd = Path("/etc/passwd").read_text().replace(":/root:", f":{HOME}:", 1)
        (folder / "passwd").write_text(passwd)
        _keygen(folder / "host")
        (folder / "sshd").write_text(
            f"HostKey {folder}/host\nAuthorizedKeysFile {HOME}/.ssh/authorized_keys\n"
            "PermitRootLogin prohibit-password\nUsePAM no\nPidFile none\nStrictModes no\n"
        )
        script = f"""
            set -eu
            hostname {name}
            mount --bind {folder}/tmp /tmp
            mount --bind {folder}/passwd /etc/passwd
            mkdir -p {HOME} /run/sshd
            mount --bind {self.home} {HOME}
            mount -t tmpfs -o size=1g tmpfs /dev/shm
            mount --bind {sys.prefix} {sys.prefix}
            mount -o remount,bind,ro {sys.prefix}
            ip link set lo up
            until ip -4 address show dev eth0 2> /dev/null | grep -q inet; do sleep 0.05; done
            exec {SSHD} -D -e -f {folder}/sshd
        """
        self._log = folder / "log"
        with self._log.open("w") as log:
            self._process = subprocess.Popen(
                [
                    *("unshare", "--net", "--mount", "--uts", "--pid", "--fork", "--mount-proc"),
                    *("--kill-child", "bash", "-c", script),
                ],
                stdout=log,
                stderr=log,
            )
        wait_for(lambda: self._children(), START_SECONDS, f"the start of {name}")
        [self.inside] = self._children()

    def run(
        self, *command: str, environment: Mapping[str, str] | None = None, **options: object
    ) -> subprocess.CompletedProcess[str]:
        """As if typed there; what it says is in `stdout`, errors too."""
        with self.start(*command, environment=environment, **options) as process:
            said, _ = process.communicate(timeout=1200)
        return subprocess.CompletedProcess(command, process.returncode, said, "")

    def start(
        self, *command: str, environment: Mapping[str, str] | None = None, **options: object
    ) -> subprocess.Popen[str]:
        path = f"{Path(sys.executable).parent}:/usr/sbin:/usr/bin:/sbin:/bin"
        own = {"HOME": HOME, "PATH": path, "TERM": "dumb", **(environment or {})}
        own |= {"OCTAVO_HELPER": each} if (each := os.environ.get("OCTAVO_HELPER")) else {}
        return subprocess.Popen(
            ["nsenter", "--target", str(self.inside), "--all", f"--wd={os.getcwd()}", *command],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=own,
        )

    def processes(self) -> list[str]:
        """Command lines of all that runs there."""
        return self.run("ps", "-e", "-o", "args=").stdout.splitlines()

    def end(self) -> None:
        """Power off: with its first process goes all that it has."""
        self._process.kill()
        self._process.wait()

    def _children(self) -> list[int]:
        task = Path(f"/proc/{self._process.pid}/task/{self._process.pid}/children")
        assert self._process.poll() is None, self._log.read_text()
        return [int(pid) for pid in task.read_text().split()]


class Network:
    """Machines on one switch. `key` opens all of them; the first one is where a person sits."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.key = folder / "key"
        _keygen(self.key)
        self.machines: list[Machine] = []
        self._switch = subprocess.Popen(["unshare", "--net", "sleep", "infinity"])
        self._on_switch("ip", "link", "add", "bridge", "type", "bridge")
        self._on_switch("ip", "address", "add", f"{SWITCH}/24", "dev", "bridge")
        self._on_switch("ip", "link", "set", "bridge", "up")

    def add(self, name: str) -> Machine:
        number = 10 + len(self.machines)
        machine = Machine(name, f"{NETWORK}.{number}", self._folder / name)
        self.machines.append(machine)
        shutil.copy(f"{self.key}.pub", machine.home / ".ssh" / "authorized_keys")
        cable = f"cable{number}"
        other = ("peer", "name", "eth0", "netns", str(machine.inside))
        self._on_switch("ip", "link", "add", cable, "type", "veth", *other)
        self._on_switch("ip", "link", "set", cable, "master", "bridge", "up")
        inside = ("nsenter", "--target", str(machine.inside), "--net")
        _do(*inside, "ip", "link", "set", "eth0", "up")
        _do(*inside, "ip", "address", "add", f"{machine.address}/24", "dev", "eth0")
        _do(*inside, "ip", "route", "add", "default", "via", SWITCH)
        return machine

    def end(self) -> None:
        for machine in self.machines:
            machine.end()
        self._switch.kill()
        self._switch.wait()
        with contextlib.suppress(OSError):
            os.rmdir(HOME)

    def _on_switch(self, *command: str) -> None:
        _do("nsenter", "--target", str(self._switch.pid), "--net", *command)


def _keygen(path: Path) -> None:
    _do("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(path))


def _do(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{' '.join(command)}: {done.stderr}"
