"""Checks that no files depend on one another in a circle, so that each can be read after those
that it uses."""

import ast
import posixpath
import re

import source_checks

# Where the path in an include or an import may begin, besides the folder of its file.
INCLUDE_ROOTS = ("libckpt/", "libckpt/include/", "tests/", "tests/unit/", "bindings/python/src/",
                 "bindings/", "")
IMPORT_ROOT = "bindings/python/"
HEADERS = (".hpp", ".h")


def _unit(path):
    """A header and its source are one: what either includes, both need."""
    return path.rsplit(".", 1)[0]


def _includes(tree):
    """{unit: {included unit: where}} of C and C++."""
    headers = set(tree.files(*HEADERS))
    arrows = {}
    for path in tree.files(*source_checks.SOURCES):
        own = arrows.setdefault(_unit(path), {})
        for number, line in enumerate(tree.text(path).splitlines(), 1):
            found = re.match(r'\s*#\s*include\s+["<]([^">]+)[">]', line)
            if found is None:
                continue
            roots = (posixpath.dirname(path) + "/",) + INCLUDE_ROOTS
            named = (posixpath.normpath(root.lstrip("/") + found.group(1)) for root in roots)
            target = next((name for name in named if name in headers), None)
            if target is not None and _unit(target) != _unit(path):
                own.setdefault(_unit(target), f"{path}:{number}")
    return arrows


def _module_of(path):
    path = path.removeprefix(IMPORT_ROOT).rsplit(".", 1)[0]
    return path.removesuffix("/__init__").replace("/", ".")


def _imported(node, module, is_package, modules):
    """The modules of ours that one statement imports, inside of functions, too."""
    if isinstance(node, ast.Import):
        names = [alias.name for alias in node.names]
    elif isinstance(node, ast.ImportFrom):
        base = node.module or ""
        if node.level > 0:
            up = module.split(".")[:None if is_package else -1]
            base = ".".join(up[:len(up) - node.level + 1] + ([base] if base else []))
        names = [f"{base}.{alias.name}" if f"{base}.{alias.name}" in modules else base
                 for alias in node.names]
    else:
        return []
    # A script's neighbours have no package.
    folder = module.rpartition(".")[0]
    return [name if name in modules else f"{folder}.{name}" for name in names
            if name in modules or f"{folder}.{name}" in modules]


def _imports(tree):
    """{module: {imported module: where}} of Python."""
    modules = {_module_of(path) for path in tree.files(".py", ".pyi")}
    arrows = {}
    for path in tree.files(".py"):
        module = _module_of(path)
        own = arrows.setdefault(module, {})
        for node in ast.walk(ast.parse(tree.text(path))):
            for name in _imported(node, module, path.endswith("/__init__.py"), modules):
                if name != module:
                    own.setdefault(name, f"{path}:{node.lineno}")
    return arrows


def _circle_from(arrows, start):
    """The shortest way from `start` back to it; empty: there is none."""
    came_from = {}
    queue = [start]
    for place in queue:
        for target in sorted(arrows.get(place, ())):
            if target == start:
                way = [place]
                while way[-1] != start:
                    way.append(came_from[way[-1]])
                return way[::-1]
            if target not in came_from:
                came_from[target] = place
                queue.append(target)
    return []


def _circles(arrows):
    findings = []
    reported = set()
    for start in sorted(arrows):
        circle = [] if start in reported else _circle_from(arrows, start)
        reported.update(circle)
        if circle:
            circle.append(start)
            findings.append(f"{arrows[start][circle[1]]}: a circle: {' -> '.join(circle)}")
    return findings


def include_circles(tree):
    """No C++ file includes its way back to itself."""
    return _circles(_includes(tree))


def import_circles(tree):
    """No Python file imports its way back to itself."""
    return _circles(_imports(tree))


CHECKS = {"include_circles": include_circles, "import_circles": import_circles}
