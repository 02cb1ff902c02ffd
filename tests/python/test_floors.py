"""Goal: arrows between the floors of the package point down, and its core knows no framework.

Method: the imports of each module are read from its source. A module may import its own floor and
lower ones; modules do not import one another in a circle. Then the same checks, on modules that
break one rule each.
"""

import ast
import pathlib

import pytest

import libckpt

PACKAGE = pathlib.Path(libckpt.__file__).parent
FLOORS = {  # By the beginning of a module's name behind "libckpt."; the longest one counts.
    "errors": 0, "_native": 0, "_programs": 0,
    "core": 1, "session": 1, "ticket": 1, "rng": 1, "_init": 1, "_load": 1, "_published": 1,
    "adapters": 2,
    "torch": 3, "transformers": 3, "dcp": 3, "deepspeed": 3, "megatron": 3, "jax": 3, "levanter": 3,
    "accelerate": 3, "lightning": 3, "torchft": 3, "torchtitan": 3,
    "torch_checkpointing": 3,
    "": 4,
}  # fmt: skip
FRAMEWORKS = {"torch", "transformers", "accelerate", "deepspeed", "megatron", "lightning", "jax",
              "levanter", "safetensors", "torchft", "torchtitan",
              "torch_checkpointing"}  # fmt: skip
OF_CORE = 1
LINES_MAX = 300


def sources():
    """By name of the module behind "libckpt.", its source."""
    found = {}
    for path in PACKAGE.rglob("*.py"):
        parts = path.relative_to(PACKAGE).with_suffix("").parts
        found[".".join(parts).removesuffix("__init__").rstrip(".")] = path.read_text()
    return found | {"_native": ""}


def floor_of(module):
    parts = module.split(".")
    names = [".".join(parts[:count]) for count in range(len(parts), 0, -1)]
    return next((FLOORS[name] for name in names if name in FLOORS), None)


def imports_of(source):
    """The names of the modules that it imports, wherever in it."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (each.name for each in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield node.module
            yield from (f"{node.module}.{each.name}" for each in node.names)


def own_imports(source, modules):
    """The modules of the package among them; for "from package import module" the module alone."""
    names = [name for name in imports_of(source) if name.startswith("libckpt.")]
    names = [name.removeprefix("libckpt.") for name in names]
    for name in names:
        is_package = any(other.startswith(f"{name}.") and other in modules for other in names)
        if name in modules and not is_package:
            yield name


def asked_by_name(source):
    """Frameworks that it looks for among the imported modules, or imports, by their names."""
    for node in ast.walk(ast.parse(source)):
        parts = []
        if isinstance(node, ast.Subscript):
            parts = [node.slice]
        elif isinstance(node, ast.Call):
            parts = node.args
        text = ast.unparse(node) if parts else ""
        if "sys.modules" in text or "import_module" in text or "__import__" in text:
            yield from (p.value for p in parts if isinstance(p, ast.Constant))


def broken_rules(modules):
    for module, source in modules.items():
        floor = floor_of(module) if module else FLOORS[""]
        if floor is None:
            yield f"{module}: it is on no floor"
            continue
        for name in own_imports(source, modules):
            if floor_of(name) > floor:
                yield f"{module}: imports {name}, which is on a higher floor"
        if floor <= OF_CORE:
            named = {name.partition(".")[0] for name in imports_of(source)}
            for name in sorted((named | set(asked_by_name(source))) & FRAMEWORKS):
                yield f"{module}: knows {name}"
    yield from circles(modules)


def circles(modules):
    wanted = {module: set(own_imports(source, modules)) for module, source in modules.items()}
    while wanted:
        free = [module for module, names in wanted.items() if not names & wanted.keys() - {module}]
        if not free:
            yield f"{', '.join(sorted(wanted))}: import one another"
            return
        for module in free:
            del wanted[module]


def test_arrows_point_down_and_the_core_knows_no_framework():
    assert list(broken_rules(sources())) == []


def test_no_file_has_more_lines_than_one_idea_needs():
    long = {name: source.count("\n") for name, source in sources().items()}
    assert {name: count for name, count in long.items() if count > LINES_MAX} == {}


@pytest.mark.parametrize(
    ("module", "source", "told"),
    [
        ("core._a", "import torch", "core._a: knows torch"),
        ("core._a", "def f():\n  from torch import nn", "core._a: knows torch"),
        ("core._a", "import sys\nsys.modules.get('jax')", "core._a: knows jax"),
        ("core._a", "import sys\nsys.modules['torch'].f()", "core._a: knows torch"),
        ("core._a", "import importlib\nimportlib.import_module('torch')", "core._a: knows torch"),
        ("core._a", "from libckpt import session\nfrom libckpt.torch import save",
         "core._a: imports torch, which is on a higher floor"),
        ("core._a", "from libckpt.adapters import _x",
         "core._a: imports adapters._x, which is on a higher floor"),
        ("adapters._x", "import libckpt.transformers",
         "adapters._x: imports transformers, which is on a higher floor"),
        ("_new", "", "_new: it is on no floor"),
        ("session", "from libckpt.core import _b", "core._b, session: import one another"),
    ],
)  # fmt: skip
def test_a_module_that_breaks_a_rule_is_named(module, source, told):
    modules = dict.fromkeys(("session", "torch", "transformers", "adapters", "adapters._x"), "")
    modules["core._b"] = "import libckpt.session"
    assert told in broken_rules({**modules, module: source})
