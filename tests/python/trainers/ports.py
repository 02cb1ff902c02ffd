"""Ports for ranks to meet at."""

import socket


def reserve():
    """A socket on a port that nobody is given by chance while it is open, and that can be bound."""
    reserved = socket.socket()
    reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    reserved.bind(("", 0))
    return reserved
