"""A machine of its own on this one: processes, mounts, network, home, an ssh server on loopback.

What runs inside sees no home, Java or Ray token of the machine outside either.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from types import TracebackType

from tests import own_namespaces

_SSH_SERVER = """
chmod 1777 /tmp
mount -t tmpfs tmpfs /run
mkdir /run/sshd
mount --bind "$place/passwd" /etc/passwd
if java=$(command -v java); then mount --bind /dev/null "$(readlink -f "$java")"; fi
/usr/sbin/sshd -f "$place/sshd_config" -E "$place/sshd.log"
echo ready
cat >/dev/null
exit 0
"""

SSHD = """
Port 22
ListenAddress 0.0.0.0
HostKey {place}/host_key
AuthorizedKeysFile {place}/key.pub
PidFile none
PasswordAuthentication no
PermitRootLogin prohibit-password
StrictModes no
UsePAM no
"""


def missing() -> str | None:
    """Why this machine cannot hold another one; None if it can."""
    return own_namespaces.missing("nsenter", "ssh", "ssh-keygen", "rsync", "/usr/sbin/sshd")


class PrivateMachine:
    """Running from ``with`` until its end, which ends everything inside.

    Args:
        place: an empty folder for its files.
        kept: folders that must be seen inside although they may lie under /tmp.
    """

    def __init__(self, place: Path, kept: tuple[Path, ...]) -> None:
        self.home = place / "home"
        self.key = place / "key"
        self._place = place
        self._namespaces = own_namespaces.OwnNamespaces(place, kept, _SSH_SERVER)
        self._init = 0

    def __enter__(self) -> PrivateMachine:
        for folder in (self.home, self._place / "tmp"):
            folder.mkdir()
        for key in (self.key, self._place / "host_key"):
            subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", key], check=True)
        (self._place / "sshd_config").write_text(SSHD.format(place=self._place), encoding="utf-8")
        users = Path("/etc/passwd").read_text(encoding="utf-8").splitlines()
        root = f"root:x:0:0:root:{self.home}:/bin/bash"
        users = [root if user.startswith("root:") else user for user in users]
        (self._place / "passwd").write_text("\n".join(users) + "\n", encoding="utf-8")
        process = self._namespaces.begin()
        assert process.stdout is not None
        said = []
        for line in process.stdout:
            if line.strip() == b"ready":
                break
            said.append(line.decode())
        else:
            raise RuntimeError(f"the private machine did not start: {''.join(said)}")
        pid = process.pid
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="utf-8")
        self._init = int(children.split()[0])
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._namespaces.end()

    def run(self, *command: str, timeout: float, cwd: Path) -> subprocess.CompletedProcess[str]:
        """Run a command inside, as root with an almost empty environment; output is one text."""
        inside = ["nsenter", "-t", str(self._init), "-p", "-m", "-n", "-u"]
        environment = {
            "HOME": str(self.home),
            "USER": "root",
            "LANG": "C.UTF-8",
            "TERM": "dumb",
            "PATH": f"{Path(sys.executable).parent}:/usr/sbin:/usr/bin:/sbin:/bin",
        }
        return subprocess.run(
            # entering a mount namespace ends in its root folder, wherever one was
            [*inside, "env", "-C", str(cwd), *command],
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=timeout,
        )

    def processes(self) -> list[str]:
        """Command lines of everything that runs inside."""
        listed = self.run("ps", "-eo", "args", "--no-headers", timeout=30, cwd=Path("/"))
        return listed.stdout.splitlines()
