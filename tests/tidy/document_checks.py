"""Checks of the documents: what they name exists, modules have a README, no machine's paths."""

import re

import source_checks

README_LINES_MAX = 30
DOCUMENTS = ("README.md", "bench/README.md", "libckpt/docs/")
# Where a path in a document may begin.
ROOTS = ("", "libckpt/", "libckpt/docs/", "tests/", "bindings/", "libckpt/include/")
SUFFIXES = (".md", ".hpp", ".cpp", ".cxx", ".h", ".sh", ".cmake", ".txt")
PROGRAMS = ("tests/run.sh", "bench/run.sh", "examples/quickstart.sh", ".ci/run", "ckpt", "ckptd",
            "ckpt_example_trainer", "ckpt_minimal_trainer", "tests/tidy/tidy.py",
            "tests/package/run.sh")


def _documents(tree):
    return [path for path in tree.files(".md")
            if path.startswith(DOCUMENTS) or re.fullmatch(r"libckpt/\w+/README\.md", path)]


def _spans(text):
    """(line, code) of each piece in backticks, and of each line of a fenced block."""
    fenced = False
    for number, line in enumerate(text.splitlines(), 1):
        if line.lstrip().startswith("```"):
            fenced = not fenced
        elif fenced:
            yield number, line.split(" #")[0].strip(), True
        else:
            for found in re.finditer(r"`([^`]+)`", line):
                yield number, found.group(1), False


def _is_path(word):
    if re.search(r"[<>{}$|=()\\\"']|\.\.\.|NNNN|NAME|://|^/|^~|^-|^build/|^\.\./", word):
        return False
    if word in SUFFIXES or word == "main.cpp":  # Kinds of files.
        return False
    first = word.split("/")[0]
    known = first in source_checks.FLOOR_OF or first in (
        "libckpt", "tests", "bench", "examples", "bindings", "cmake", "docs", "decisions", ".ci",
        "support", "unit", "ckpt", "training")
    return ("/" in word and known) or ("/" not in word and word.endswith(SUFFIXES[:5] + (".sh",)))


def _is_there(tree, document, word):
    word = word.rstrip("/")
    folder = document.rsplit("/", 1)[0] + "/" if "/" in document else ""
    for root in ROOTS + (folder,):
        pattern = re.escape(root + word).replace(r"\*", "[^/]*")
        if "*" in word:
            if any(re.match(pattern + r"(?:/|$)", path) for path in tree.paths):
                return True
        elif tree.exists(root + word):
            return True
    # A class or file named without its folder, as `slot.hpp`; a module's pair, as `base/clock`.
    if "/" not in word:
        return any(path.endswith("/" + word) for path in tree.paths)
    return any(path.startswith(root + word + ".") for root in ROOTS for path in tree.paths)


def _known_options(tree):
    """Every --option that a program of ours defines."""
    options = {"--help", "--version"}
    for path in tree.files(".cpp", ".sh", ".py", "CMakeLists.txt", under=(
            "libckpt/", "examples/", "tests/", "bench/", "bindings/")):
        options.update(re.findall(r"(?<![\w-])--[a-z][a-z0-9-]*", tree.text(path)))
    return options


def _known_subcommands(tree):
    found = set()
    for path in tree.files(".cpp", ".hpp", under=("libckpt/cli/",)):
        found.update(re.findall(r"add_subcommand\(\s*\"([a-z-]+)\"", tree.text(path)))
        found.update(re.findall(r"subcommand\w*\([^;]*?\"([a-z-]+)\"", tree.text(path)))
    return found


def documents(tree):
    """Each path, command, option and variable that a document names is there."""
    findings = []
    options = _known_options(tree)
    subcommands = _known_subcommands(tree)
    variables = _known_variables(tree)
    for document in _documents(tree):
        for line, code, fenced in _spans(tree.text(document)):
            where = f"{document}:{line}"
            words = code.split()
            while words and (words[0] == "bash" or re.match(r"[A-Z_]+=", words[0])):
                words.pop(0)
            command = words[0].removeprefix("./") if words else ""
            is_ours = command in PROGRAMS
            for word in words:
                word = word.rstrip(".,;:")
                named = (is_ours or not fenced) and _is_path(word)
                if named and not _is_there(tree, document, word):
                    findings.append(f"{where}: there is no file {word}")
                name = word.split("=")[0]
                checked = is_ours or (not fenced and len(words) == 1)
                if checked and re.fullmatch(r"--[a-z][a-z0-9-]*", name) and name not in options:
                    findings.append(f"{where}: there is no option {name}")
            if command == "ckpt" and len(words) > 1 and re.fullmatch(r"[a-z][a-z-]*", words[1]) \
                    and words[1] not in subcommands:
                findings.append(f"{where}: there is no command ckpt {words[1]}")
            for variable in re.findall(r"\b(?:LIBCKPT|CKPT)_[A-Z][A-Z0-9_]*\b", code):
                if variable not in variables:
                    findings.append(f"{where}: nothing knows {variable}")
    return findings


def names(tree):
    """The names in the map of the code and in the modules' READMEs are in the code:
    `Class::function` in one file, a function or a type anywhere."""
    words_of = {path: set(re.findall(r"\w+", tree.text(path)))
                for path in tree.files(".hpp", ".cpp", ".h", ".py")}
    known = set().union(*words_of.values())
    for path in words_of:
        known.update(path.rsplit(".", 1)[0].split("/"))  # A README names files of its module.
    findings = []
    for document in tree.files("/README.md", "/ARCHITECTURE.md", under=("libckpt/",)):
        for line, code, fenced in _spans(tree.text(document)):
            if fenced or not re.fullmatch(r"[A-Za-z_]\w*(::[A-Za-z_]\w*)*(\(\))?", code):
                continue
            words = set(re.findall(r"\w+", code))
            is_there = words <= known and (
                "::" not in code or any(words <= of_file for of_file in words_of.values()))
            if not is_there:
                findings.append(f"{document}:{line}: nothing in the code is called {code}")
    return findings


OPTIONS_GUIDE = "libckpt/docs/guide/options.md"


def options(tree):
    """The guide's tables have a row for each option, flag and command, and for nothing else."""
    wanted = set()
    for path, pattern in (
            ("libckpt/client/option_fields.cpp", r"field<&Options::[^>]*>\(\"(\w+)\"\)"),
            ("libckpt/base/variables.hpp", r"\{\"(--[a-z-]+)\", \"LIBCKPT_")):
        if tree.exists(path):
            wanted.update(re.findall(pattern, tree.text(path)))
    if not wanted:
        return []
    wanted.update(f"ckpt {name}" for name in _known_subcommands(tree))
    if not tree.exists(OPTIONS_GUIDE):
        return [f"{OPTIONS_GUIDE}:1: there is no such guide"]
    text = tree.text(OPTIONS_GUIDE)
    rows = set(re.findall(r"^\| `([^`]+)` \|", text, re.MULTILINE))
    return ([f"{OPTIONS_GUIDE}:1: no row for {name}" for name in sorted(wanted - rows)] +
            [f"{OPTIONS_GUIDE}:1: a row for {name}, which nobody knows"
             for name in sorted(rows - wanted)])


def _known_variables(tree):
    found = set()
    for path in tree.files(".cpp", ".hpp", ".h", ".sh", ".cmake", "CMakeLists.txt", ".py", ".in",
                           "CMakePresets.json"):
        found.update(re.findall(r"\b(?:LIBCKPT|CKPT)_[A-Z][A-Z0-9_]*\b", tree.text(path)))
        if path.endswith("ckpt/options.hpp"):
            names = re.findall(r"^  [\w:<>]+ (\w+)(?:\s*=|\{|;)", tree.text(path), re.MULTILINE)
            found.update("LIBCKPT_" + name.upper() for name in names)
    return found


def links(tree):
    """Relative links of documents lead somewhere."""
    findings = []
    for document in tree.files(".md"):
        folder = document.rsplit("/", 1)[0] + "/" if "/" in document else ""
        for found in re.finditer(r"\]\(([^)#\s]+)[^)]*\)", tree.text(document)):
            target = found.group(1)
            if "://" not in target and not tree.exists(folder + target):
                line = tree.text(document).count("\n", 0, found.start()) + 1
                findings.append(f"{document}:{line}: the link to {target} leads nowhere")
    return findings


def readmes(tree):
    """Each module has a README that fits on a screen."""
    findings = []
    modules = {path.split("/")[1] for path in tree.files(".hpp", ".cpp", under=("libckpt/",))}
    for module in sorted(modules - {"include"}):
        path = f"libckpt/{module}/README.md"
        if path not in tree.paths:
            findings.append(f"{path}:1: the module has no README")
        elif len(tree.text(path).splitlines()) > README_LINES_MAX:
            findings.append(f"{path}:1: more than {README_LINES_MAX} lines")
    return findings


# Written so that the check does not find itself.
_MACHINE = re.compile(r"(?<![\w.])/(?:wor[k]|far[m]|ro[o]t|ho[m]e)/[a-zA-Z.]|bash_job[s]")


def machines(tree):
    """No path of somebody's machine."""
    findings = []
    for path in tree.paths:
        if path.endswith((".safetensors", ".bin", ".png")):
            continue
        for number, line in enumerate(tree.text(path).splitlines(), 1):
            if _MACHINE.search(line):
                findings.append(f"{path}:{number}: a path of some machine")
    return findings


CHECKS = {
    "documents": documents,
    "names": names,
    "options": options,
    "links": links,
    "readmes": readmes,
    "machines": machines,
}
