"""Init: opens a session. Each option of the library is a keyword of its own."""

import functools
import inspect
import operator
import os
from typing import Any, TypedDict

from libckpt import _native, errors
from libckpt.core import _frameworks, _settings
from libckpt.session import Session

COUNTS = ("max_ckpt_num", "keep", "rank", "world_size")  # The package itself works with these.
FLAGS = ("raise_on_error", "allow_pickle", "debug")  # The package's own.


def init(
    job=None, dir=None, *, guard=None,
    save_mem_interval=None, save_storage_interval=None,
    max_ckpt_num=None, keep=None, keep_every=None, keep_best=None,
    best_metric=None, best_mode=None, compression=None,
    raise_on_error=None, allow_pickle=None, debug=None,
    memory_budget=None, replicas=None, own_slots=None, blob_capacity=None,
    copy_threads=None, gpu_copy_rate=None, gpu_gap=None, gpu_gather=None, gpu_check=None,
    flush_rate=None, replica_rate=None, skip_unchanged=None, yield_=None,
    checksum_in_copy=None, compare_copies=None,
    rank=None, world_size=None, nodes=None, node=None, incarnation=None,
    secret_file=None, interface=None, port=None, runtime_dir=None, daemon_path=None,
    embedded=None, log_file_path=None, disable=None,
    open_deadline=None, restore_deadline=None,
):  # fmt: skip
    """Opens a session for this rank of `job`; the node's daemon is started when none runs.

    job: the name of the run; by default LIBCKPT_JOB.
    dir: where checkpoints are published: a directory, or "s3://bucket/prefix"; none: memory only.
        Two places: "/nvme/run, s3://bucket/run every 10"; the second one gets copies.
    guard: an optimizer, or several, for Session.guard.
    save_mem_interval: steps, or a time as "60s"; every step by default.
    save_storage_interval: likewise; "30min" by default when there is a directory, or "never".
    max_ckpt_num or keep: how many checkpoints stay on storage; all by default.
    keep_every: besides, each so many steps for good: 5000, or [{"every": 1000, "until": 10000},
        {"every": 5000}].
    keep_best: besides, the best so many by `best_metric`, a name in `metrics` of the saves;
        best_mode: "min", the default, or "max".
    compression: "zstd", or "zstd:3" with a level: checkpoints are stored compressed.
    raise_on_error: failing saves raise; else they are logged and counted.
    allow_pickle: whether what only a pickle can hold is saved, and restored, as one. A pickle runs
        what it was made to run: allow it for checkpoints that you trust.
    debug: looks for tensors that change while they are captured; by default LIBCKPT_DEBUG=1.
    All others, and their defaults: the guide on options. An option that is None is taken from the
    environment (LIBCKPT_DIR), then from the file LIBCKPT_CONFIG, and then has its default.
    """
    # An option that is a word of Python's own has an underscore behind it there.
    given = {key.removesuffix("_"): v for key, v in locals().items() if v is not None}
    return _open(given)


def check(job=None, **options):
    """For a door that opens its session later than it is made: refuses a wrong option now, by its
    name and its value. `options` are those of init. Errors: InvalidArgument."""
    given = {key.removesuffix("_"): v for key, v in options.items() if v is not None}
    if _settings.is_true(given.get("disable", _settings.configured("disable"))):
        return
    given = _translated({**given, "job": job or "not-named-yet"})
    _configured_to_raise()
    for name in ("guard", *FLAGS):
        given.pop(name, None)
    try:
        _native.check_options(given)
    except errors.InvalidArgument:
        raise
    except errors.CheckpointError:  # The file's. The opening reports it, and training may go on.
        pass


def _open(given):
    given = _translated(given)
    raise_on_error = given.pop("raise_on_error", None)
    if raise_on_error is None:
        raise_on_error = _configured_to_raise()
    allow_pickle = given.pop("allow_pickle", False)
    debug = given.pop("debug", os.environ.get("LIBCKPT_DEBUG") == "1")
    guarded = given.pop("guard", ())
    guarded = guarded if isinstance(guarded, (list, tuple)) else (guarded,)
    for optimizer in guarded:
        _frameworks.guardable(optimizer)  # Refuses what is no optimizer before anything opens.
    session = Session(given, raise_on_error=raise_on_error, allow_pickle=allow_pickle, debug=debug)
    return session.guard(*guarded) if guarded else session


def _configured_to_raise():
    """Whether the environment or the file says so."""
    return _settings.flag("raise_on_error", _settings.configured("raise_on_error") or "")


def _translated(given):
    """The options as the library, and a session, take them."""
    if "max_ckpt_num" in given and "keep" in given:
        raise errors.InvalidArgument("give max_ckpt_num or keep: they are the same")
    given |= {name: _settings.count(name, given[name]) for name in COUNTS if name in given}
    given |= {name: _settings.flag(name, given[name]) for name in FLAGS if name in given}
    _check(given)
    given["job"] = _settings.job(given.get("job"))
    if "keep" in given:
        given["max_ckpt_num"] = given.pop("keep")
    if "keep_every" in given:
        given["keep_every"] = _settings.intervals_as_text(given["keep_every"])
    if "dir" in given:
        given["dir"] = _settings.absolute(given["dir"])
    return given


def _check(given):
    """Checks the options of the package itself; the library checks the rest."""
    if _settings.job(given.get("job")) is None:
        raise errors.InvalidArgument(
            "option job: none was given: give the run a name in the code, or in LIBCKPT_JOB"
        )
    if "dir" in given and not _settings.path_text(given["dir"]):
        raise errors.InvalidArgument(
            "option dir: it is empty, which would be the current directory: give one (\".\" for "
            "that one), or None for memory only"
        )
    for name in ("max_ckpt_num", "keep"):
        count = given.get(name, 0)
        if not hasattr(count, "__index__") or operator.index(count) < 0:
            raise errors.InvalidArgument(
                f"option {name}: {count!r} was given: it is a number of checkpoints, 0 or None "
                "for all"
            )
    if given.get("save_mem_interval") == 0:
        raise errors.InvalidArgument(
            "option save_mem_interval: 0 was given: no step would ever be due; give steps from 1, "
            'or a time as "60s"'
        )
    for name in ("rank", "world_size"):
        if not hasattr(given.get(name, 0), "__index__"):
            raise errors.InvalidArgument(f"option {name}: {given[name]!r} is of the wrong type")


# All but those that say what the session is for.
KEYWORDS = {
    name: each
    for name, each in inspect.signature(init).parameters.items()
    if each.kind is each.KEYWORD_ONLY and name != "guard"
}
Options = TypedDict("Options", dict.fromkeys(KEYWORDS, Any), total=False)


def with_keywords(function):
    """The signature of a function that hands **options to init, with each option by name."""
    signature = inspect.signature(function)
    *own, options = signature.parameters.values()
    assert options.kind is options.VAR_KEYWORD
    names = {each.name for each in own}
    more = [each for name, each in KEYWORDS.items() if name not in names]
    signature = signature.replace(parameters=[*own, *more])

    @functools.wraps(function)
    def call(*arguments, **options):
        signature.bind(*arguments, **options)  # Refuses at once what is no option.
        return function(*arguments, **options)

    call.__signature__ = signature
    return call
