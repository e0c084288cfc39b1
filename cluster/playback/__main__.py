"""The process that plays: `python -m octavo.cluster.playback scene < SCENE` (JSON), or `... journal
PART FILE`, with the films at its standard output. It runs beside a server, so that no engine waits
for it. Status 1 and one sentence where there is nothing to play.
"""

from __future__ import annotations

import contextlib
import resource
import sys
from pathlib import Path

import msgspec

from octavo.cluster.playback import recorded
from octavo.cluster.playback.film import join
from octavo.cluster.playback.recorded import Part
from octavo.cluster.playback.scene import Scene, films
from octavo.scheduler.errors import OctavoError

MOST_MEMORY = 4 * 2**30  # a journal may be anyone's, and say that there is a huge pool


def main(arguments: list[str]) -> int:
    with contextlib.suppress(ValueError, OSError):  # the system may allow less already
        resource.setrlimit(resource.RLIMIT_AS, (MOST_MEMORY, MOST_MEMORY))
    try:
        made = _play(arguments)
    except (OctavoError, msgspec.MsgspecError) as error:
        print(error, file=sys.stderr)
        return 1
    except MemoryError:
        print(f"it takes more than {MOST_MEMORY // 2**30} GiB of memory to play", file=sys.stderr)
        return 1
    sys.stdout.buffer.write(made)
    return 0


def _play(arguments: list[str]) -> bytes:
    match arguments:
        case ["scene"]:
            return films(msgspec.json.decode(sys.stdin.buffer.read(), type=Scene))
        case ["journal", part, path]:
            return join([recorded.film(Path(path), msgspec.json.decode(part, type=Part))])
    raise SystemExit(__doc__)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
