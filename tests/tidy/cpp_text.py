"""Reads C++ just well enough for the checks: blanks out comments and strings, finds functions."""

import re

_BLANKED = re.compile(
    r'//[^\n]*|/\*.*?\*/|R"(\w*)\(.*?\)\1"|"(?:\\.|[^"\\\n])*"|(?<![\w])\'(?:\\.|[^\'\\\n])+\'',
    re.DOTALL)


def code_only(text):
    """The text with comments and the contents of strings blanked, line by line the same."""
    def blank(match):
        found = match.group(0)
        if found.startswith('"'):
            return '"' + " " * (len(found) - 2) + '"'
        return re.sub(r"[^\n]", " ", found)
    return _BLANKED.sub(blank, text)


def line_of(text, position):
    return text.count("\n", 0, position) + 1


_CONTAINER = re.compile(r"\b(namespace|class|struct|union|enum)\b|\bextern\s*\"")
_PREPROCESSOR = re.compile(r"^[ \t]*#(?:[^\n\\]|\\.|\\\n)*", re.MULTILINE)


def functions(text):
    """(first line, last line, header, body) of each function that stands in no other function."""
    code = _PREPROCESSOR.sub(lambda found: re.sub(r"[^\n]", " ", found.group(0)), code_only(text))
    found = []
    stack = []  # (kind, start of the header)
    start = 0  # A header may begin here.
    for position, letter in enumerate(code):
        if letter == "{":
            header = code[start:position]
            inside = any(kind != "container" for kind, _, _ in stack)
            if inside:
                kind = "block"
            elif _CONTAINER.search(header) and not re.search(r"\)\s*(const|noexcept)?\s*$", header):
                kind = "container"
            elif "(" in header and not re.search(r"(?<![=!<>])=(?!=)[^()]*$", header):
                kind = "function"
            else:
                kind = "initializer"
            stack.append((kind, start, position))
            if kind != "initializer":
                start = position + 1
        elif letter == "}":
            if not stack:
                continue
            kind, begin, opened = stack.pop()
            if kind == "function":
                first = begin + len(code[begin:]) - len(code[begin:].lstrip())
                found.append((line_of(code, first), line_of(code, position),
                              code[first:opened], code[opened:position + 1]))
            if kind != "initializer":
                start = position + 1
        elif letter == ";" and not _inside_parentheses(code, start, position):
            start = position + 1
    return found


def _inside_parentheses(code, start, position):
    part = code[start:position]
    return part.count("(") > part.count(")")


def statements(text):
    """(line, text, ender) of each statement or header, where ender is ; { or }."""
    code = code_only(text)
    out = []
    scopes = []
    start = depth = 0
    for position, letter in enumerate(code):
        if letter in "([":
            depth += 1
        elif letter in ")]":
            depth -= 1
        elif letter == "{" or letter == "}" or (letter == ";" and depth <= 0):
            part = code[start:position]
            first = start + len(part) - len(part.lstrip())
            out.append((line_of(code, first), part.strip(), letter))
            start = position + 1
            if letter == "{":
                scopes.append(depth)
                depth = 0
            elif letter == "}":
                depth = scopes.pop() if scopes else 0
    return out
