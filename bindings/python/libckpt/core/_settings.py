"""Settings: an option in the environment and the configuration file, before any default."""

import os
import pathlib
import re

from libckpt import errors

SCHEME = re.compile(r"^[A-Za-z0-9+-]+:/")  # "s3://bucket", and schemes that the library refuses.
PLACES = re.compile(r",(?=[ \t/]|$|[^/ ,\t]+://)")  # Parts two places; the library reads them.
TRUE = ("1", "true", "yes", "on")
FALSE = ("0", "false", "no", "off", "")
COUNT_MAX = 2**32 - 1  # As in the library's Options.
SPACES = " \t\n\r\v\f"


def configured(option):
    """The text that the library will take where the code gives none; None: neither has one.

    Whether it is a good one, the library says, and also what is wrong with the file.
    """
    return os.environ.get(f"LIBCKPT_{option.upper()}") or _file().get(option)


def chosen(options, option):
    """The option's value from the code, or else the configured one."""
    return options.get(option) or configured(option)


def job(given):
    """The name of a training's job: the code's, else the configured one; None: neither has one, and
    a door that knows the training's folder makes one of that."""
    if isinstance(given, int) and not isinstance(given, bool):
        return str(given)  # As a scheduler's number.
    if given is not None and not isinstance(given, str):
        raise errors.InvalidArgument(f"option job: {given!r} was given: give text")
    return given or configured("job")


def is_true(value):
    """Whether an option that is a flag, as text perhaps, is set."""
    return str(value).lower() in TRUE


def is_disabled(options):
    """Whether libckpt is switched off: by the code, or else by what is configured."""
    given = options.get("disable")
    return is_true(configured("disable") if given is None else given)


def flag(option, value):
    """An option of the package itself that is a flag: True, False, or text in the library's words.

    Errors: InvalidArgument.
    """
    if isinstance(value, bool):
        return value
    if not isinstance(value, str):
        raise errors.InvalidArgument(f"option {option}: {value!r} was given: give True or False")
    word = value.strip(SPACES).lower()
    if word not in (*TRUE, *FALSE):
        raise errors.InvalidArgument(
            f'option {option} = "{value}": expected 1 or 0, true or false, yes or no, on or off'
        )
    return word in TRUE


def count(option, value):
    """A number, if it was given as text; all else as it is. Errors: InvalidArgument."""
    if not isinstance(value, str):
        return value
    digits = value.strip(SPACES)
    if not (digits.isascii() and digits.isdigit()) or int(digits) > COUNT_MAX:
        raise errors.InvalidArgument(
            f'option {option} = "{value}": expected a whole number from 0 to {COUNT_MAX}'
        )
    return int(digits)


def directory(options):
    """The directory that holds for the job, as an absolute path; None: memory only."""
    path = chosen(options, "dir")
    return absolute(path) if path else None


def path_text(path, what="option dir"):
    """A path's text. Errors: InvalidArgument (bytes, or no path at all)."""
    if not isinstance(path, (str, os.PathLike)) or not isinstance(os.fspath(path), str):
        raise errors.InvalidArgument(f"{what}: {path!r} was given: give text or a pathlib.Path")
    return os.fspath(path)


def absolute(path):
    """A path of files made absolute; a bucket's, another scheme's, or two places as they are."""
    path = path_text(path)
    return path if SCHEME.match(path) or PLACES.search(path) else os.path.abspath(path)


def storage_interval(options):
    """Steps, or a time, as text; None: never. The default is that of the library's options.hpp."""
    found = options.get("save_storage_interval")
    if found is None:
        found = configured("save_storage_interval")
    if found is None and directory(options):
        found = "30min"
    return None if found is None else str(found)


def steps_between(options):
    """save_mem_interval in steps, as the library takes it; None: it is a time; 0: never."""
    found = options.get("save_mem_interval")
    if found is None:
        found = configured("save_mem_interval")
    if found is None:
        return 1  # The default of the library's options.hpp.
    text = str(found).strip(SPACES)
    if text == "never":
        return 0
    return int(text) if text.isascii() and text.isdigit() else None


def intervals_as_text(given):
    """keep_every as text, from numbers, dictionaries, or objects with `every` and `until`."""
    if not isinstance(given, (list, tuple)):
        return given
    texts = []
    for each in given:
        if isinstance(each, dict):
            every, until = each.get("every"), each.get("until")
        else:
            every, until = getattr(each, "every", each), getattr(each, "until", None)
        texts.append(f"{every}" if until is None else f"{every} until {until}")
    return ", ".join(texts)


def _file():
    path = pathlib.Path(os.environ.get("LIBCKPT_CONFIG", ""))
    try:
        # A FIFO or a device would hold us before the library could refuse it.
        content = path.read_bytes() if path.is_file() else b""
    except OSError:
        return {}
    lines = (line.strip(SPACES) for line in os.fsdecode(content).split("\n"))
    pairs = (line.partition("=") for line in lines if not line.startswith("#"))
    return {name.rstrip(SPACES): value.lstrip(SPACES) for name, _, value in pairs if value}
