"""Goal: what the stubs tell a type checker is what the modules have, name by name, both ways.

Method: each .pyi of the installed package is parsed and compared with its module at run time:
public functions and classes, their methods, properties and attributes, parameters with their kinds
and defaults. Then the comparison itself, on stubs that are wrong in one thing each.
"""

import ast
import importlib
import inspect
import pathlib
import sys
import textwrap
import typing

import pytest

import libckpt

PACKAGE = pathlib.Path(libckpt.__file__).parent
FRAMEWORKS = {  # A module of ours needs these.
    "torch": "torch", "transformers": "transformers", "jax": "jax", "levanter": "jax",
    "megatron": "megatron.core", "dcp": "torch", "deepspeed": "deepspeed",
    "accelerate": "accelerate", "lightning": "lightning", "torchft": "torchft",
    "torchtitan": "torchtitan", "torch_checkpointing": "torch_checkpointing",
}  # fmt: skip
OF_PYTHON = {"__del__", "__new__"} | set(dir(object)) - {"__init__"}  # No stub tells of these.


def is_public(name):
    return not name.startswith("_") or (name.startswith("__") and name not in OF_PYTHON)


def is_options(argument):
    """Whether they are those of libckpt.Options, each as a keyword of its own."""
    return argument.annotation is not None and ast.unparse(argument.annotation) == "Unpack[Options]"


def parameters_of_stub(function):
    """(name, kind, default or None) of each, the default as its source."""
    given, kinds = function.args, inspect.Parameter
    placed = [
        *((argument, kinds.POSITIONAL_ONLY) for argument in given.posonlyargs),
        *((argument, kinds.POSITIONAL_OR_KEYWORD) for argument in given.args),
    ]
    defaults = [None] * (len(placed) - len(given.defaults)) + given.defaults
    found = [(*pair, default) for pair, default in zip(placed, defaults, strict=True)]
    if given.vararg:
        found.append((given.vararg, kinds.VAR_POSITIONAL, None))
    found += [
        (argument, kinds.KEYWORD_ONLY, default)
        for argument, default in zip(given.kwonlyargs, given.kw_defaults, strict=True)
    ]
    if given.kwarg and is_options(given.kwarg):
        none = ast.Constant(None)
        own = {argument.arg for argument, *_ in found}
        names = [name for name in libckpt._init.KEYWORDS if name not in own]
        found += [(ast.arg(name), kinds.KEYWORD_ONLY, none) for name in names]
    elif given.kwarg:
        found.append((given.kwarg, kinds.VAR_KEYWORD, None))
    return [
        (argument.arg, kind.name, None if default is None else ast.literal_eval(default))
        for argument, kind, default in found
    ]


def parameters_of(function):
    if type(function).__module__ == "nanobind":  # It has no signature, but its first line is one.
        header = function.__doc__.splitlines()[0]
        return parameters_of_stub(ast.parse(f"def {header}: ...").body[0])
    return [
        (name, each.kind.name, None if each.default is each.empty else each.default)
        for name, each in inspect.signature(function).parameters.items()
    ]


class Scope:
    """The declarations of a stub at one level."""

    def __init__(self, body):
        self.functions, self.classes, self.values = {}, {}, set()
        for node in body:
            if isinstance(node, ast.FunctionDef):
                self.functions[node.name] = node
            elif isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                # A private class is a Protocol, for type checkers alone.
                self.classes[node.name] = node
            elif isinstance(node, ast.AnnAssign):
                self.values.add(node.target.id)
            elif isinstance(node, ast.ImportFrom):  # Of "name as name": the others are for types.
                self.values.update(each.name for each in node.names if each.asname == each.name)

    def names(self):
        return self.functions.keys() | self.classes.keys() | self.values


def own_attributes(kind):
    """The attributes that a class's methods give to self, by its source."""
    tree = ast.parse(textwrap.dedent(inspect.getsource(kind)))
    return {
        node.attr
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute)
        and isinstance(node.ctx, ast.Store)
        and isinstance(node.value, ast.Name)
        and node.value.id == "self"
    }


def members_of(kind):
    """Methods and properties that a class has of its own: those that a base made known need no
    stub."""
    inherited = {name for base in kind.__mro__[1:] for name in vars(base)} - {"__init__"}
    return {
        name
        for name, value in vars(kind).items()
        if (callable(value) or isinstance(value, property))
        and is_public(name)
        and name not in inherited
    }


def compare_functions(where, declared, function):
    stub, module = parameters_of_stub(declared), parameters_of(function)
    if stub != module:
        yield f"{where}: the stub has {stub}, the module {module}"


def compare_classes(where, declared, kind):
    stub = Scope(declared.body)
    has = members_of(kind)
    if typing.is_typeddict(kind):
        has |= kind.__annotations__.keys()
    elif not type(kind).__module__.startswith("nanobind"):
        has |= {name for name in own_attributes(kind) if is_public(name)}
    for name in stub.classes.keys() & vars(kind).keys():  # A dataclass in it: its fields.
        has.add(name)
        fields = Scope(stub.classes[name].body).values
        if fields != vars(kind)[name].__annotations__.keys():
            yield f"{where}.{name}: the stub has the fields {fields}"
    for name in sorted(stub.names() ^ has):
        yield f"{where}.{name}: only in the {'stub' if name in stub.names() else 'module'}"
    for name in sorted(stub.functions.keys() & has):
        value = vars(kind)[name]
        is_property = [getattr(d, "id", "") for d in stub.functions[name].decorator_list] == [
            "property"
        ]
        if is_property != isinstance(value, property):
            yield f"{where}.{name}: a property in one of the two only"
        elif not is_property:
            yield from compare_functions(f"{where}.{name}", stub.functions[name], value)


def public_names(module):
    """By __all__, else the functions and classes that it defines itself."""
    if hasattr(module, "__all__"):
        return set(module.__all__)
    return {
        name
        for name, value in vars(module).items()
        if (callable(value) and getattr(value, "__module__", None) == module.__name__)
        and is_public(name)
    }


def differences(text, module):
    stub = Scope(ast.parse(text).body)
    doors = set(getattr(module, "_DOORS", ()))  # Each comes at its first use, and its framework.
    for name in sorted((public_names(module) | doors) - stub.names()):
        yield f"{name}: only in the module"
    for name in sorted(name for name in stub.names() - doors if not hasattr(module, name)):
        yield f"{name}: only in the stub"
    for name, declared in stub.functions.items():
        if hasattr(module, name):
            yield from compare_functions(name, declared, getattr(module, name))
    for name, declared in stub.classes.items():
        if hasattr(module, name):
            yield from compare_classes(name, declared, getattr(module, name))


def module_of(path):
    """The name of the module whose source or stub lies there."""
    parts = path.relative_to(PACKAGE).with_suffix("").parts
    return ".".join(["libckpt", *parts]).removesuffix(".__init__")


@pytest.mark.parametrize("stub", sorted(PACKAGE.rglob("*.pyi")), ids=module_of)
def test_a_stub_and_its_module_have_the_same(stub):
    name = module_of(stub)
    framework = name.partition(".")[2]
    if framework in FRAMEWORKS:
        pytest.importorskip(FRAMEWORKS[framework])
    module = importlib.import_module(name)
    assert list(differences(stub.read_text(), module)) == []


def test_each_public_module_with_functions_has_a_stub():
    public = [*PACKAGE.glob("[!_]*.py"), *(PACKAGE / name / "__init__.py" for name in FRAMEWORKS)]
    stubs = {module_of(path) for path in PACKAGE.rglob("*.pyi")}
    # The classes of `errors` have nothing that needs a type.
    assert set(map(module_of, public)) - stubs == {"libckpt.errors"}


MODULE = """
class Thing:
    def __init__(self, size=3):
        self.size = size

    @property
    def is_small(self):
        return True

    def grow(self, by, *, twice=False): ...

    def _hidden(self): ...


def make(name, *rest, **options): ...
"""
STUB = """
from typing import Any

Name = str

class Thing:
    size: int
    def __init__(self, size: int = 3) -> None: ...
    @property
    def is_small(self) -> bool: ...
    def grow(self, by: int, *, twice: bool = False) -> None: ...

def make(name: Name, *rest: int, **options: Any) -> Thing: ...
"""


def test_a_door_without_a_stub_of_its_own_name_is_found(monkeypatch):
    stub = (PACKAGE / "__init__.pyi").read_text()
    monkeypatch.setattr(libckpt, "_DOORS", (*libckpt._DOORS, "another"))
    assert list(differences(stub, libckpt)) == ["another: only in the module"]
    assert list(differences(stub.replace("    dcp as dcp,\n", ""), libckpt)) == [
        "another: only in the module", "dcp: only in the module"
    ]  # fmt: skip


@pytest.fixture
def made_up(tmp_path, monkeypatch):
    (tmp_path / "made_up.py").write_text(MODULE)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield importlib.import_module("made_up")
    del sys.modules["made_up"]


def test_a_stub_that_is_right_has_no_differences(made_up):
    assert list(differences(STUB, made_up)) == []


@pytest.mark.parametrize(
    ("right", "wrong", "told"),
    [
        ("def make(name: Name,", "def made(name: Name,", "make: only in the module"),
        ("def make(name: Name,", "def make(names: Name,", "make: the stub has"),
        ("*rest: int, ", "", "make: the stub has"),
        ("twice: bool = False", "twice: bool", "Thing.grow: the stub has"),
        ("twice: bool = False", "twice: bool = True", "Thing.grow: the stub has"),
        ("by: int, *, ", "by: int, ", "Thing.grow: the stub has"),
        ("size: int = 3", "size: int = 4", "Thing.__init__: the stub has"),
        ("    @property\n", "", "Thing.is_small: a property in one of the two only"),
        ("    size: int\n", "", "Thing.size: only in the module"),
        ("    size: int\n", "    size: int\n    name: str\n", "Thing.name: only in the stub"),
        ("def grow(", "def shrink(", "Thing.grow: only in the module"),
        ("class Thing:", "class Other: ...\nclass Thing:", "Other: only in the stub"),
    ],
)
def test_a_stub_that_is_wrong_is_told(made_up, right, wrong, told):
    assert STUB.count(right) == 1
    found = list(differences(STUB.replace(right, wrong), made_up))
    assert found and found[0].startswith(told)
