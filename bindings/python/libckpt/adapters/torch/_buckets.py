"""Buckets: rows of bytes, cut so that each message has a limited size."""


def buckets(parts, limit):
    """The rows of bytes one after the other, cut into lists of `limit` bytes."""
    pieces, room = [], limit
    for part in parts:
        begin = 0
        while begin < part.numel():
            piece = part[begin : begin + room]
            pieces.append(piece)
            begin += piece.numel()
            room -= piece.numel()
            if room == 0:
                yield pieces
                pieces, room = [], limit
    if pieces:
        yield pieces
