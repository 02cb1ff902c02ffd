"""Checks that the sources of a folder can be compiled as one: a unity build puts several of them
into one translation unit, where their anonymous namespaces are the same."""

import collections
import posixpath
import re

import cpp_text

# No preset builds these as one.
NEVER_AS_ONE = ("bench/",)
_ANONYMOUS = re.compile(r"\bnamespace\s*\{")
_PREPROCESSOR = re.compile(r"^[ \t]*#(?:[^\n\\]|\\.|\\\n)*", re.MULTILINE)
_TYPE = re.compile(r"(?:struct|class|union|enum(?: class| struct)?) (?:alignas\(\w+\) )?(\w+)")
# These name nothing: a test has a string for its name, a claim speaks of what stands elsewhere.
_NAMELESS = re.compile(r"(?:static_assert|namespace|friend|extern|TEST_CASE|TEMPLATE_TEST_CASE|"
                       r"SCENARIO|CATCH_\w+)\b")


def _declarations(code):
    """(position, text, ender) of what stands at the top of an anonymous namespace."""
    for opened in _ANONYMOUS.finditer(code):
        depth = 1
        start = opened.end()
        for position in range(opened.end(), len(code)):
            letter = code[position]
            if letter == "{":
                if depth == 1:
                    yield start, code[start:position], letter
                depth += 1
            elif letter == "}":
                depth -= 1
                start = position + 1
                if depth == 0:
                    break
            elif letter == ";" and depth == 1:
                yield start, code[start:position], letter
                start = position + 1


def _named(declaration, ender):
    """(name, what it stands for) of a declaration; None: it names nothing, or is only announced."""
    text = " ".join(declaration.split())
    text = re.sub(r"\[\[.*?\]\] ?", "", text)
    while text.startswith("template"):  # Its parameters hold no comparison here.
        begin = text.index("<")
        depth = 0
        for position in range(begin, len(text)):
            depth += {"<": 1, ">": -1}.get(text[position], 0)
            if depth == 0:
                break
        text = text[position + 1:].lstrip()
    if not text or _NAMELESS.match(text) or text.startswith("using namespace "):
        return None
    found = _TYPE.match(text)
    if found:
        return (found.group(1), None) if ender == "{" else None
    found = re.match(r"using (\w+) ?= ?(.*)", text)
    if found:
        return found.group(1), found.group(2)
    if text.startswith("using "):
        return re.split(r"[ :]", text)[-1], text
    found = re.match(r"[^=]*?(\w+) ?\(", text)
    if found is None:
        found = re.match(r"[^=]*?(\w+) ?(?:\[[^=]*\])* ?(?:=|$)", text)
    return (found.group(1), None) if found else None


def anonymous_names(text):
    """{name: (line, meaning)}; the meaning of an alias is what it stands for, of others None."""
    code = _PREPROCESSOR.sub(lambda found: re.sub(r"[^\n]", " ", found.group(0)),
                             cpp_text.code_only(text))
    names = {}
    for start, declaration, ender in _declarations(code):
        named = _named(declaration, ender)
        if named is not None:
            first = start + len(declaration) - len(declaration.lstrip())
            names.setdefault(named[0], (cpp_text.line_of(code, first), named[1]))
    return names


def unity(tree):
    """No two sources of a folder give one name to two things in anonymous namespaces."""
    findings = []
    seen = collections.defaultdict(dict)  # folder -> name -> (path, line, meaning)
    for path in tree.files(".cpp"):
        if path.startswith(NEVER_AS_ONE):
            continue
        folder = seen[posixpath.dirname(path)]
        for name, (line, meaning) in anonymous_names(tree.text(path)).items():
            other, other_line, other_meaning = folder.setdefault(name, (path, line, meaning))
            if other != path and (meaning is None or meaning != other_meaning):
                findings.append(f"{path}:{line}: {name} is a name of {other}:{other_line}, too: a "
                                "unity build compiles both as one file")
    return findings


CHECKS = {"unity": unity}
