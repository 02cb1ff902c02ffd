"""Two nodes on loopback addresses: what only a job with a peer reaches."""

LABELS = ()
killed = {}


def tasks(tools, arguments):
    return []
