"""What `octavo serve` writes to the terminal: one line a stage with its time, and a banner."""

from __future__ import annotations

import json
import sys
import time

from octavo.cluster.api.settings import Address


class Console:
    """Writes to standard error, so that nothing mixes with a command's output."""

    def __init__(self) -> None:
        self._began = time.monotonic()

    @property
    def seconds(self) -> float:
        """Since the start."""
        return time.monotonic() - self._began

    def say(self, text: str) -> None:
        """One line with the time since the start."""
        print(f"[{self.seconds:6.1f} s] {text}", file=sys.stderr, flush=True)

    def error(self, text: str) -> None:
        """One line that stands out."""
        print(f"octavo: error: {text}", file=sys.stderr, flush=True)

    def banner(self, address: Address, model: str, needs_key: bool) -> None:
        """Where the server is and how to try it."""
        url = address.url
        body = json.dumps({"model": model, "messages": [{"role": "user", "content": "Hello!"}]})
        key = " -H 'Authorization: Bearer YOUR_KEY'" if needs_key else ""
        print(
            f"""
Octavo is ready after {self.seconds:.1f} s and serves {model}.

  API    {url}/v1
  pages  {url}/dashboard  {url}/health  {url}/metrics
  try    curl {url}/v1/chat/completions -H 'Content-Type: application/json'{key} \\
           -d '{body}'
  stop   Ctrl-C
""",
            file=sys.stderr,
            flush=True,
        )

    def deployed(self, url: str, models: list[str]) -> None:
        """Where a cluster serves `models`."""
        print(
            f"""
Octavo serves {", ".join(models)} after {self.seconds:.1f} s.

  API    {url}/v1
  pages  {url}/dashboard  {url}/health  {url}/metrics
""",
            file=sys.stderr,
            flush=True,
        )
