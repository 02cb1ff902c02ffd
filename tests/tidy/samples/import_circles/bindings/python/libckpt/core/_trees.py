"""Trees: puts its import off, which hides the circle and leaves it."""


def leaves(tree):
    from ._items import of

    return of(tree)
