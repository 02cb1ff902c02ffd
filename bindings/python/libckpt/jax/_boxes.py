"""Boxes: how an array is cut into cells, of which each device holds one.

    shape (8, 6), cuts ((0, 4), (0, 2, 4))     two by three cells
    the box of a cell: ((4, 8), (2, 4))        begin and end in each dimension
    its name: layers.0.w[4:8,2:4]              of the only cell of an array: that of the array

Every sharding of JAX cuts each dimension by itself, so that the cells make a grid.
"""

import itertools

from libckpt.errors import Unsupported


def box_of(index, shape):
    """The box of the tuple of slices that JAX has for a device."""
    return tuple(each.indices(length)[:2] for each, length in zip(index, shape, strict=True))


def shape_of(box):
    return tuple(end - begin for begin, end in box)


def slices_of(box, inside=None):
    """To cut the box out of an array, or out of the part of one that is the box `inside`."""
    begins = [begin for begin, _ in inside] if inside is not None else [0] * len(box)
    return tuple(slice(b - at, e - at) for (b, e), at in zip(box, begins, strict=True))


def common(one, other):
    """The box that both have; None: they have no element in common."""
    box = tuple((max(a, c), min(b, d)) for (a, b), (c, d) in zip(one, other, strict=True))
    return box if all(begin < end for begin, end in box) else None


def hull(boxes):
    """The smallest box around them."""
    return tuple(
        (min(begin for begin, _ in sides), max(end for _, end in sides))
        for sides in zip(*boxes, strict=True)
    )


def cuts_of(name, boxes, shape):
    """Where the boxes begin, in each dimension. Boxes that are no grid are refused."""
    cuts = tuple(
        tuple(sorted({box[i][0] for box in boxes})) for i in range(len(shape))
    )
    if set(cells(cuts, shape)) != set(boxes):
        raise Unsupported(
            f'array "{name}": its devices hold parts that make no grid: put it on a NamedSharding, '
            "with jax.device_put, before it is saved"
        )
    return cuts


def cells(cuts, shape):
    """All boxes of the grid, in one order everywhere."""
    sides = [
        tuple(zip(begins, (*begins[1:], length), strict=True))
        for begins, length in zip(cuts, shape, strict=True)
    ]
    return list(itertools.product(*sides))


def name_of(array, box, cuts):
    if all(len(begins) == 1 for begins in cuts):
        return array
    return f"{array}[{','.join(f'{begin}:{end}' for begin, end in box)}]"
