"""Gives Java a name for the user that this process runs as, if the machine has none.

A cluster such as OpenShift runs a pod as a user of its own choice. If neither the image nor the container runtime has an entry for it in
/etc/passwd, Hadoop's classes, by which Spark opens files, refuse to start ("Invalid UID, could not determine effective user"), and Java
takes ``?`` for the home directory. nss_wrapper shows Java a file of ours instead of /etc/passwd.

Always holds: a user that has a name keeps it, and nothing is set.
"""

from __future__ import annotations

import glob
import os
import pwd
import tempfile
from pathlib import Path

LIBRARIES = ("/usr/lib/*/libnss_wrapper.so", "/usr/lib64/libnss_wrapper.so", "/usr/lib/libnss_wrapper.so")
"""Where Linux distributions put nss_wrapper; glob patterns."""
NAME = "streamjoin"


class NamelessUserError(Exception):
    """This process runs as a user without a name; the text has the remedy."""


def name_for_java() -> dict[str, str]:
    """What to add to Java's environment so that it knows its user; nothing if the user has a name. Raises NamelessUserError."""
    user = os.getuid()
    try:
        pwd.getpwuid(user)
    except KeyError:
        pass
    else:
        return {}
    library = next((path for pattern in LIBRARIES for path in sorted(glob.glob(pattern))), None)
    if library is None:
        remedy = "add an entry to the image, or install libnss-wrapper there (apt-get install libnss-wrapper)"
        raise NamelessUserError(f"user {user} has no entry in /etc/passwd, which Java needs; {remedy}")
    home = tempfile.gettempdir()
    passwd = Path(tempfile.mkdtemp(prefix="streamjoin-user-"), "passwd")
    passwd.write_text(f"{NAME}:x:{user}:{os.getgid()}::{home}:/bin/sh\n")
    preloaded = [library, *filter(None, [os.environ.get("LD_PRELOAD")])]
    return {"LD_PRELOAD": " ".join(preloaded), "NSS_WRAPPER_PASSWD": str(passwd), "NSS_WRAPPER_GROUP": "/etc/group"}
